"""Names of headers and URL parameters by which an agent could log in beside the credential of a route. Pure.

Trust boundary: they come from inside a bottle, in any spelling. Every service has names of its own, so words
decide: a header that is left out in vain costs little, one that logs in as somebody else costs the route.
"""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import unquote_to_bytes

from egress.proxy.http.heads import folded
from egress.proxy.http.targets import MOST_PARAMETERS, too_many_parameters

_WORDS = frozenset(
    b"token key apikey accesskey secret auth oauth oidc authorization authentication password passwd pwd"
    b" passphrase credential credentials session sessionid cookie cookie2 jwt bearer wsse assertion signature"
    b" sign hmac crumb principal cert clientcert".split()
)
_ENDS_OF_WORDS = (b"token", b"apikey", b"secret", b"password")
_BY_NAME = frozenset({b"x-honeycomb-team"})
# Who it is, as a proxy in front of the origin would say it.
_VOUCHED = frozenset({b"remote", b"forwarded", b"authenticated", b"webauth"})
_PERSON = frozenset({b"user", b"username", b"email", b"group", b"groups"})

# Keys, tokens and sessions of another kind: nobody logs in with them, and a request without them fails or
# means something else. A CSRF token is not among them: it belongs to a cookie, which is taken out.
_HARMLESS = frozenset(
    {
        b"mcp-session-id",
        b"npm-session",
        b"x-amz-chime-bearer",  # a name; the signature says who may use it
        b"x-atlassian-token",  # always 'no-check'
        b"x-ms-session-token",  # how far a client of Cosmos DB has read
    }
)
_HARMLESS_ENDS = frozenset(
    b"cache-key continuation-token idempotency-key idempotency-token lock-token next-token page-token"
    b" partition-key retry-token routing-key surrogate-key sync-token websocket-key".split()
)
_SAYS_HOW = frozenset({b"type", b"mode", b"version"})  # npm-auth-type
_HARMLESS_KINDS = re.compile(
    # what is stored with an object, and how it is encrypted: else it would be stored in the clear
    rb"x-[a-z0-9]+-meta-.*|(?:.*-)?encryption(?:-.*)?"
    # sessions and tokens of the services of AWS, but for those that log in
    rb"|x-amzn?-(?!.*(?:security|access|bearer|s3session|authorization|oidc|key|secret|cert)).*"
)

_PARAMETERS = (
    "bearer", "id_token", "token", "key", "auth", "credential", "credentials", "client_assertion",
    "jsessionid", "phpsessid", "sig", "hmac", "google_access_id", "x_amz_credential", "x_goog_credential",
)  # fmt: skip
# Many keys name a thing (project_key, partition_key, start_key); these do not.
_ENDS_OF_PARAMETERS = (
    "token", "secret", "password", "passwd", "passphrase", "pwd", "jwt", "authorization", "signature",
    "api_key", "app_key", "application_key", "access_key", "access_key_id", "auth_key", "consumer_key",
    "developer_key", "license_key", "master_key", "private_key", "secret_key", "security_key", "service_key",
    "signing_key", "subscription_key",
)  # fmt: skip
# Places in a list, states of a thing, and what makes a request the same when it is sent again.
_HARMLESS_TOKENS = tuple(
    kind + b"token"
    for kind in b"page next nextchunk nextmessage previous prev continuation continue pagination cursor start"
    b" starting skip delta sync resume resumption scroll block version configuration checkpoint client"
    b" clientrequest creation idempotency rewrite restore wait".split()
)
_PARAMETER = re.compile(rb"(?:\A|[?&;])([^?&;=\[\0]+)")
_BETWEEN_WORDS = re.compile(rb"[^a-z0-9]")
# Spelt sessionId or session_id it names a thing, which MCP over SSE needs; so does userKey at Google.
_AS_SPELT = re.compile(rb"(?:\A|[^A-Za-z])(?:([Ss]essionid|SESSIONID)|(?i:user[_.-]key))(?:\Z|[^A-Za-z])")
_REMEMBERED_BYTES = 64


def is_credential_header(key: bytes) -> bool:
    """Whether this name (lower case) stands for a credential. Short names are remembered."""
    return _remembered_header(key) if len(key) <= _REMEMBERED_BYTES else _header_logs_in(key)


def _header_logs_in(key: bytes) -> bool:
    name = folded(key)
    words = name.split(b"-")
    if name in _HARMLESS or b"-".join(words[-2:]) in _HARMLESS_ENDS or words[-1] in _SAYS_HOW:
        return False
    if _HARMLESS_KINDS.fullmatch(name):
        return False
    return (
        name in _BY_NAME
        or any(word in _WORDS or word.endswith(_ENDS_OF_WORDS) for word in words)
        or not (_VOUCHED.isdisjoint(words) or _PERSON.isdisjoint(words))
    )


def credential_in_query(query: bytes) -> str | None:
    """What to leave out of it, in words, or None. Raises BadRequest for more than can be looked at."""
    for name in _parameter_names(query):
        found = _remembered_parameter(name) if len(name) <= _REMEMBERED_BYTES else _parameter_logs_in(name)
        if found is not None:
            return found
    return None


def _parameter_names(query: bytes) -> set[bytes]:
    """All that an origin could read there, with escapes undone once and twice."""
    names = _names_in(query)
    once = [unquote_to_bytes(name) for name in names]
    twice = [unquote_to_bytes(name) for name in once]
    return {name for layer in (names, once, twice) for name in _names_in(b"&".join(layer))}


def _names_in(query: bytes) -> list[bytes]:
    if sum(query.count(separator) for separator in (b"?", b"&", b";")) >= MOST_PARAMETERS:
        raise too_many_parameters()
    return _PARAMETER.findall(query)


def _parameter_logs_in(name: bytes) -> str | None:
    if match := _AS_SPELT.search(name):
        return "sessionid" if match[1] else "user_key"
    joined = _joined(name)
    if joined in _REFUSED:
        return _REFUSED[joined]
    if joined.endswith(_HARMLESS_TOKENS):
        return None
    return next((told for end, told in _REFUSED_ENDS.items() if joined.endswith(end)), None)


def _joined(name: bytes) -> bytes:
    """One form for access_token, accessToken, access.token and 'access token': some origins take them all."""
    return _BETWEEN_WORDS.sub(b"", name.lower())


_REFUSED = {_joined(name.encode("ascii")): name for name in _PARAMETERS}
_REFUSED_ENDS = {
    _joined(end.encode("ascii")): f"parameters that end in '{end}'" for end in _ENDS_OF_PARAMETERS
}
_remembered_header = lru_cache(maxsize=1024)(_header_logs_in)
_remembered_parameter = lru_cache(maxsize=1024)(_parameter_logs_in)
