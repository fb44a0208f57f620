"""AWS Signature Version 4: a request signed with a key that the bottle never sees.

Pure. What the agent's own SDK put there to sign with a made-up key is replaced, not trusted; a URL that is
signed already does not get here (see `credentials`).
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote, unquote

from egress.policy.aws_scope import signing_scope
from egress.proxy.errors import Refusal
from egress.proxy.http.heads import Field

ALGORITHM = "AWS4-HMAC-SHA256"
UNSIGNED = "UNSIGNED-PAYLOAD"
EMPTY_DIGEST = hashlib.sha256(b"").hexdigest()
_DIGEST = re.compile(rb"[0-9a-f]{64}")
_REPLACED = frozenset(
    {b"authorization", b"x-amz-date", b"x-amz-security-token", b"x-amz-content-sha256", b"date"}
)
# Part of the signature besides all x-amz-* headers. Others may be changed on the way without harm.
_SIGNED = frozenset({b"host", b"content-type", b"content-md5", b"range"})


@dataclass(frozen=True, slots=True)
class AwsKey:
    """From a secret of the form `ACCESS_KEY_ID:SECRET_ACCESS_KEY` or with `:SESSION_TOKEN` after it."""

    identifier: str
    secret: str
    session: str = ""

    @classmethod
    def parse(cls, text: str) -> AwsKey | None:
        parts = text.split(":", 2)
        return cls(*parts) if len(parts) >= 2 and all(parts) else None


@dataclass(frozen=True, slots=True)
class SignedRequest:
    method: str
    host: str
    origin_form: bytes


def hashes_the_body(host: str) -> bool:
    """Whether the body has to be known before the request can be signed. S3 takes it unsigned over TLS."""
    return signing_scope(host)[0] != "s3"


def sign(
    request: SignedRequest, fields: list[Field], key: AwsKey, body_digest: str, now: datetime
) -> list[Field]:
    """The fields with the proxy's signature in place of the agent's. Raises Refusal if that cannot be.

    `body_digest` is empty where the body is not known yet, as for S3.
    """
    service, region = signing_scope(request.host)
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    digest = body_digest or _declared_digest(fields)
    kept = [entry for entry in fields if entry[0] not in _REPLACED]
    added = {"X-Amz-Date": stamp, "X-Amz-Content-Sha256": digest}
    if key.session:
        added["X-Amz-Security-Token"] = key.session
    for name, value in added.items():
        kept.append((name.lower().encode("ascii"), name.encode("ascii"), value.encode("ascii")))
    scope = f"{stamp[:8]}/{region}/{service}/aws4_request"
    canonical, signed = _canonical(request, kept, digest, encode_twice=service != "s3")
    to_sign = "\n".join([ALGORITHM, stamp, scope, hashlib.sha256(canonical.encode("utf-8")).hexdigest()])
    signature = hmac.new(_signing_key(key.secret, scope), to_sign.encode("ascii"), hashlib.sha256).hexdigest()
    value = f"{ALGORITHM} Credential={key.identifier}/{scope}, SignedHeaders={signed}, Signature={signature}"
    return [*kept, (b"authorization", b"Authorization", value.encode("ascii"))]


def _declared_digest(fields: list[Field]) -> str:
    declared = next((value for name, _, value in fields if name == b"x-amz-content-sha256"), b"")
    if declared.startswith(b"STREAMING-") and not declared.startswith(b"STREAMING-UNSIGNED"):
        raise Refusal(
            "signed-chunks",
            "The body is signed chunk by chunk with a key that is not used here. Switch payload signing off.",
        )
    if _DIGEST.fullmatch(declared) or declared.startswith(b"STREAMING-UNSIGNED"):
        return declared.decode("ascii")
    return UNSIGNED


def _canonical(
    request: SignedRequest, fields: list[Field], digest: str, *, encode_twice: bool
) -> tuple[str, str]:
    path, _, query = request.origin_form.decode("ascii").partition("?")
    headers: dict[str, list[str]] = {"host": [request.host]}
    for key, _, value in fields:
        if key != b"host" and (key in _SIGNED or key.startswith(b"x-amz-")):
            headers.setdefault(key.decode("ascii"), []).append(" ".join(value.decode("latin-1").split()))
    names = sorted(headers)
    signed = ";".join(names)
    lines = [
        request.method,
        quote(path, safe="/-_.~") if encode_twice else quote(unquote(path), safe="/-_.~"),
        _canonical_query(query),
        *(f"{name}:{','.join(headers[name])}" for name in names),
        "",
        signed,
        digest,
    ]
    return "\n".join(lines), signed


def _canonical_query(query: str) -> str:
    pairs = [part.partition("=") for part in query.split("&") if part]
    encoded = [
        (quote(unquote(name), safe="-_.~"), quote(unquote(value), safe="-_.~")) for name, _, value in pairs
    ]
    return "&".join(f"{name}={value}" for name, value in sorted(encoded))


def _signing_key(secret: str, scope: str) -> bytes:
    key = f"AWS4{secret}".encode("ascii")
    for part in scope.split("/"):
        key = hmac.new(key, part.encode("ascii"), hashlib.sha256).digest()
    return key
