"""The HTTP checks of the agent plane, before a body is read: Host, Origin, length, types.

Pure. All values are the client's, checked so that no web page reaches a local endpoint by DNS rebinding.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from supervise.mcp.jsonrpc import INVALID_REQUEST, ProtocolError

LOCAL_NAMES = frozenset({"localhost", "supervise"})  # `supervise` is the endpoint's name inside a bottle


@dataclass(frozen=True)
class Accepted:
    json: bool
    sse: bool


def check_host(headers: Mapping[str, str], bind: str, names: Collection[str] = ()) -> None:
    if not _is_own_address(_hostname(f"//{headers.get('host', '')}"), bind, names):
        raise _refusal(403, "This Host is not served here. Use the address that the operator gave you.")


def check_origin(headers: Mapping[str, str], bind: str, names: Collection[str] = ()) -> None:
    """Refuse other origins: agents are not web pages, so an Origin is either our own address or an attack."""
    origin = headers.get("origin")
    if origin is None:
        return
    if not origin.startswith(("http://", "https://")) or not _is_own_address(_hostname(origin), bind, names):
        raise _refusal(403, "Requests from web pages of this Origin are refused.")


def check_length(headers: Mapping[str, str], limit: int) -> None:
    length = headers.get("content-length", "")
    if not length:
        if "chunked" in headers.get("transfer-encoding", "").lower():
            return
        raise _refusal(400, "Content-Length is missing. Send the length of the body in bytes.")
    if not (length.isascii() and length.isdigit()):
        raise _refusal(400, "Content-Length must be a whole number of bytes.")
    if len(length) > 18 or int(length) > limit:
        raise too_large(limit)


def too_large(limit: int) -> ProtocolError:
    return _refusal(413, f"The request body is larger than {limit} bytes. Send less.")


def check_content_type(headers: Mapping[str, str]) -> None:
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise _refusal(415, "Content-Type must be application/json.")


def accepted(headers: Mapping[str, str]) -> Accepted:
    """The types that the client accepts. `*/*` (curl) means JSON: only a client that names event streams gets
    one.
    """
    ranges = [_media_range(part) for part in headers.get("accept", "*/*").split(",")]
    wanted = {media_type for media_type, quality in ranges if quality > 0}
    unwanted = {media_type for media_type, quality in ranges if quality <= 0}
    sse = bool(wanted & {"text/event-stream", "text/*"}) and "text/event-stream" not in unwanted
    json = bool(wanted & {"application/json", "application/*", "*/*"}) and "application/json" not in unwanted
    if not (json or sse):
        raise _refusal(406, "Accept application/json, text/event-stream or both.")
    return Accepted(json=json, sse=sse)


def _media_range(part: str) -> tuple[str, float]:
    media_type, *parameters = (piece.strip().lower() for piece in part.split(";"))
    quality = next((p.removeprefix("q=") for p in parameters if p.startswith("q=")), "1")
    try:
        return media_type, float(quality)
    except ValueError:
        return media_type, 1.0


def _hostname(url: str) -> str:
    try:
        parts = urlsplit(url)
        if "@" in parts.netloc or parts.path not in ("", "/") or parts.query or parts.fragment:
            return ""
        return parts.hostname or ""
    except ValueError:
        return ""


def _is_own_address(hostname: str, bind: str, names: Collection[str]) -> bool:
    if hostname in LOCAL_NAMES or hostname in names or (hostname and hostname == bind.lower()):
        return True
    try:
        address = ipaddress.ip_address(hostname)
    except ValueError:
        return False
    # A rebinding attack needs a name. A server that is bound to every address accepts any address.
    return address.is_loopback or bind in ("", "0.0.0.0", "::")  # noqa: S104 - compared, not bound


def _refusal(http_status: int, message: str) -> ProtocolError:
    return ProtocolError(INVALID_REQUEST, message, http_status=http_status)
