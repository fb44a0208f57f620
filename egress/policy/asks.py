"""The checks an ask passes before it is queued: bad input is one clear sentence and nothing is filed.

Trust boundary: `arguments` is whatever an agent put into a tool call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from egress.policy.errors import BadHost, BadRoute, PolicyError, quoted
from egress.policy.hostnames import check_askable, check_operator_host, refuse_local_name
from egress.policy.paths import canonical_prefix
from egress.policy.routes import (
    AGENT_SCHEMES,
    MAX_USES,
    OPERATOR_SCHEMES,
    Auth,
    Dlp,
    canonical_addresses,
    canonical_methods,
    known_keys,
    listed,
)

MAX_TTL_SECONDS = 30 * 24 * 3600
MAX_ENTRIES = 100
MAX_URL = 8192

_ASK_KEYS = ("host", "path_allowlist", "methods", "auth", "lease")
_OPERATOR_KEYS = (*_ASK_KEYS, "dlp", "pinned_addresses")


def parse_egress_ask(arguments: Mapping[str, object]) -> dict[str, Any]:
    """The canonical payload of an `egress-block`, with only the given keys. Raises PolicyError with the bad
    field.

    A key that is null counts as not given, and so does a list that means everything (empty, or with `/`).
    """
    given = _given(arguments, _ASK_KEYS)
    payload: dict[str, Any] = {"host": check_askable(_text(given["host"], "host"))}
    return payload | _narrowing(given) | _auth(given, AGENT_SCHEMES) | _lease(given)


def parse_operator_route(arguments: Mapping[str, object]) -> dict[str, Any]:
    """Like `parse_egress_ask`, with what only operators may set: every auth scheme, DLP and pinned addresses.

    Names of private networks are accepted together with the addresses they are pinned to.
    """
    given = _given(arguments, _OPERATOR_KEYS)
    payload: dict[str, Any] = {"host": check_operator_host(_text(given["host"], "host"))}
    payload |= _narrowing(given) | _auth(given, OPERATOR_SCHEMES) | _lease(given)
    if "dlp" in given:
        payload["dlp"] = Dlp.from_dict(given["dlp"]).as_dict()
    pinned = canonical_addresses(_entries(given.get("pinned_addresses", ()), "pinned_addresses"))
    if pinned:
        payload["pinned_addresses"] = list(pinned)
    else:
        _require_public_name(payload["host"])
    return payload


def parse_gate_ask(arguments: Mapping[str, object]) -> dict[str, str]:
    """The canonical payload of a `pipelock-block`: the given URL and its canonical host."""
    given = known_keys(arguments, "the request", ("failed_url",))
    url = _text(given.get("failed_url"), "failed_url")
    if len(url) > MAX_URL:
        raise PolicyError(f"failed_url is longer than {MAX_URL} characters")
    if any(character.isspace() or not character.isprintable() for character in url) or "\\" in url:
        raise PolicyError("failed_url has a space, a backslash, a control or an invisible character")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise PolicyError(f"failed_url is not a URL: got {quoted(url)}") from error
    if parts.scheme not in {"http", "https"}:
        raise PolicyError(f"failed_url must start with http:// or https://: got {quoted(url)}")
    if "@" in parts.netloc:
        raise PolicyError("failed_url has user information: leave out everything before '@'")
    if not host:
        raise PolicyError(f"failed_url has no hostname: got {quoted(url)}")
    if "*" in host:
        raise PolicyError("failed_url's host must not be a pattern: give the URL that failed")
    return {"failed_url": url, "host": check_askable(host, field="failed_url's host")}


def _given(arguments: Mapping[str, object], allowed: tuple[str, ...]) -> dict[str, Any]:
    known = known_keys(arguments, "the request", allowed)
    given = {key: value for key, value in known.items() if value is not None}
    if "host" not in given:
        raise BadHost("host is required: the hostname to reach, such as 'api.github.com'")
    return given


def _text(value: object, field: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise PolicyError(f"{field} is required and must be text that is not empty")
    return value


def _entries(value: object, field: str) -> list[Any]:
    entries = listed(value, field)
    if len(entries) > MAX_ENTRIES:
        raise BadRoute(f"{field} has more than {MAX_ENTRIES} entries: ask for wider ones, or in parts")
    return list(entries)


def _narrowing(given: Mapping[str, Any]) -> dict[str, Any]:
    """The paths and methods; an absent key means all."""
    paths = {
        canonical_prefix(text, field=f"path_allowlist[{index}]")
        for index, text in enumerate(_entries(given.get("path_allowlist", ()), "path_allowlist"))
    }
    methods = canonical_methods(_entries(given.get("methods", ()), "methods"))
    narrowing: dict[str, Any] = {}
    if paths and "/" not in paths:
        narrowing["path_allowlist"] = sorted(paths)
    if methods:
        narrowing["methods"] = list(methods)
    return narrowing


def _auth(given: Mapping[str, Any], schemes: tuple[str, ...]) -> dict[str, Any]:
    if "auth" not in given:
        return {}
    keys = ("scheme", "token_ref", "header") if "header" in schemes else ("scheme", "token_ref")
    auth = known_keys(given["auth"], "auth", keys, required=("scheme", "token_ref"))
    if auth["scheme"] not in schemes:
        raise BadRoute(f"auth.scheme must be {' or '.join(schemes)}: got {quoted(auth['scheme'])}")
    return {"auth": Auth.from_dict(auth).as_dict()}


def _lease(given: Mapping[str, Any]) -> dict[str, Any]:
    if "lease" not in given:
        return {}
    lease = known_keys(given["lease"], "lease", ("ttl_seconds", "max_uses"))
    limits = {key: value for key, value in lease.items() if value is not None}
    if not limits:
        raise BadRoute("lease needs ttl_seconds, max_uses or both")
    for key, most in (("ttl_seconds", MAX_TTL_SECONDS), ("max_uses", MAX_USES)):
        if key in limits and (type(limits[key]) is not int or not 1 <= limits[key] <= most):
            raise BadRoute(f"lease.{key} must be a whole number from 1 to {most}: got {quoted(limits[key])}")
    return {"lease": {key: limits[key] for key in ("ttl_seconds", "max_uses") if key in limits}}


def _require_public_name(host: str) -> None:
    try:
        refuse_local_name(host)
    except BadHost as error:
        raise BadHost(f"{error}; an operator can open it by pinning it with pinned_addresses") from error
