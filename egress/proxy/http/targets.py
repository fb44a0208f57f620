"""The target of a request, in the one form that is both matched and forwarded.

Trust boundary: request targets and Host headers are off the wire. Host, target and TLS name must be the same.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from egress.policy.decide import PORTS, Request
from egress.policy.errors import BadHost
from egress.policy.hostnames import CONTROL_PLANE_NAMES, canonical_host
from egress.proxy.errors import BadRequest
from egress.proxy.http.heads import RequestHead

_AUTHORITY = re.compile(rb"([A-Za-z0-9._-]{1,255})(?::([0-9]{1,5}))?")
_ABSOLUTE = re.compile(rb"(?i:(http|https))://([^/?#]*)(/[^?#]*)?(\?[^#]*)?")
_ORIGIN = re.compile(rb"(/[^?#]*)(\?[^#]*)?")
MOST_PARAMETERS = 1000  # as many as Django, PHP and Tomcat take


class Target(NamedTuple):
    """`origin_form` is exactly what is sent on; `path` is its part before the query."""

    scheme: str
    host: str
    port: int
    path: str
    origin_form: bytes

    def asked_with(self, method: str) -> Request:
        return Request(self.scheme, self.host, self.port, method, self.path)

    @property
    def is_ours(self) -> bool:
        return self.host in CONTROL_PLANE_NAMES


def read_authority(raw: bytes, default_port: int) -> tuple[str, int]:
    """Canonical host and port. Raises BadRequest for user information, IP addresses and all other forms."""
    match = _AUTHORITY.fullmatch(raw)
    if match is None:
        raise BadRequest(
            "bad-host", "The request was refused: write the host as a plain name, such as api.github.com."
        )
    text = match[1].decode("ascii")
    port = int(match[2]) if match[2] else default_port
    if text.lower() in CONTROL_PLANE_NAMES:
        return text.lower(), port
    try:
        return canonical_host(text), port
    except BadHost as error:
        raise BadRequest("bad-host", f"The request was refused: {error}.") from error


def connect_target(head: RequestHead) -> Target:
    """The target of a CONNECT, without a path. Raises BadRequest when the Host header differs."""
    if b":" not in head.target:
        raise BadRequest("bad-target", "The request was refused: CONNECT needs host:port.")
    host, port = read_authority(head.target, 0)
    declared = head.single.get(b"host")
    if declared is None:
        if head.version == b"1.1":
            raise BadRequest("bad-host", "The request was refused: it has no Host header.")
    elif declared != head.target and read_authority(declared, port) != (host, port):
        raise BadRequest(
            "host-mismatch", "The request was refused: its Host header is not the CONNECT target."
        )
    return Target("https", host, port, "", b"")


def forward_target(head: RequestHead) -> Target:
    """The target of a plain request to the proxy: an absolute http:// URL whose host is the Host header's."""
    _require_http_1_1(head)
    match = _ABSOLUTE.fullmatch(head.target)
    if match is None:
        raise BadRequest(
            "bad-target",
            "The request was refused: a proxy needs the whole URL, such as http://example.com/path.",
        )
    scheme, authority, path, query = match.groups()
    if scheme.lower() != b"http":
        raise BadRequest("bad-target", "The request was refused: https goes through CONNECT.")
    if path is None and query:
        raise BadRequest("bad-target", "The request was refused: the URL has a query but no path.")
    host, port = read_authority(authority, PORTS["http"])
    _require_host(head, host, port, PORTS["http"])
    path = path or b"/"
    return Target("http", host, port, path.decode("ascii"), path + (query or b""))


def inner_target(head: RequestHead, scheme: str, host: str, port: int) -> Target:
    """The target of a request inside an opened CONNECT (or on a socket that serves only `host`)."""
    _require_http_1_1(head)
    match = _ORIGIN.fullmatch(head.target)
    if match is None:
        raise BadRequest("bad-target", "The request was refused: its target must be a path.")
    _require_host(head, host, port, PORTS[scheme])
    path, query = match.groups()
    return Target(scheme, host, port, path.decode("ascii"), path + (query or b""))


def agent_target(head: RequestHead) -> Target:
    """The target of a request on the agent socket, which has one host, whatever the agent calls it."""
    if not head.target.startswith(b"/") or head.version != b"1.1":
        raise BadRequest("bad-target", "The request was refused: its target must be a path.")
    path = head.target.partition(b"?")[0].decode("ascii")
    return Target("http", "supervise", 80, path, head.target)


def too_many_parameters() -> BadRequest:
    return BadRequest(
        "too-many-parameters", f"The URL has more than {MOST_PARAMETERS} parameters. Send fewer."
    )


def _require_host(head: RequestHead, host: str, port: int, default_port: int) -> None:
    declared = head.single.get(b"host")
    if declared is None:
        raise BadRequest("bad-host", "The request was refused: it has no Host header.")
    if port == default_port and declared.decode("latin-1") == host:  # the form that nearly all clients send
        return
    if read_authority(declared, default_port) != (host, port):
        raise BadRequest(
            "host-mismatch", "The request was refused: its Host header names another host than its target."
        )


def _require_http_1_1(head: RequestHead) -> None:
    if head.version != b"1.1":
        raise BadRequest("bad-version", "This proxy needs HTTP/1.1 for requests.", 505)
    if head.method == "CONNECT":
        raise BadRequest("bad-target", "The request was refused: CONNECT cannot be nested.")
