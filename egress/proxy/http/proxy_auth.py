"""Credentials on the TCP port: a bottle's slug and token, as Basic credentials for the proxy."""

from __future__ import annotations

import base64
import binascii
import re

_CLAIM = re.compile(rb"\nproxy-authorization:[ \t]*([^\r\n]*)", re.IGNORECASE)


def slug_and_token(value: bytes) -> tuple[str, bytes]:
    """Both are empty for anything but Basic credentials: no bottle has that slug."""
    scheme, _, encoded = value.partition(b" ")
    if scheme.lower() != b"basic":
        return "", b""
    try:
        slug, _, token = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        return slug.decode("ascii"), token
    except (binascii.Error, UnicodeDecodeError):
        return "", b""


def claimed_slug(head: bytes) -> str:
    """The slug that an unparsed head claims; empty unless it claims exactly one."""
    found = _CLAIM.findall(head)
    return slug_and_token(found[0])[0] if len(found) == 1 else ""
