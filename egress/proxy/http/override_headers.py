"""Headers by which an origin may be led to serve another request than the one that was decided on. Pure.

Trust boundary: they come from inside a bottle. Origins believe them because proxies of their own use them.
"""

from __future__ import annotations

from functools import cache

from egress.policy.routes import Route
from egress.proxy.errors import Refusal
from egress.proxy.http.heads import Field, RequestHead, folded

_METHODS = frozenset(
    b"""
    x-http-method-override x-http-method x-method-override x-original-method x-forwarded-method
    """.split()
)
_HOSTS = frozenset(
    b"""
    forwarded x-forwarded-host x-forwarded-port x-forwarded-server x-host x-host-override
    x-http-host-override x-original-host x-real-host x-envoy-original-host
    """.split()
)
_PATHS = frozenset(
    b"""
    path-info script-name request-uri x-envoy-original-path x-forwarded-path x-forwarded-prefix
    x-forwarded-uri x-forwarded-url x-http-path-override x-invoke-path x-matched-path x-original-path
    x-original-uri x-original-url x-override-url x-path-info x-proxy-url x-request-uri x-rewrite-path
    x-rewrite-uri x-rewrite-url x-script-name
    """.split()
)
# A second place to read from or write to. Without such a header, the request would mean something else.
_SECOND_PLACES = frozenset(
    b"""
    destination x-amz-copy-source x-amz-rename-source x-copy-from x-cos-copy-source x-goog-copy-source
    x-ms-copy-source x-ms-rename-source x-obs-copy-source x-oss-copy-source
    """.split()
)
ALL = _METHODS | _HOSTS | _PATHS | _SECOND_PLACES


def without_overrides(head: RequestHead, route: Route) -> list[Field]:
    """The fields that travel, without headers that could lead the request past what this route allows.

    Raises Refusal where the request would mean something else without one.
    """
    is_signed = route.auth is not None and route.auth.scheme == "SigV4"
    possible = _possible(bool(route.methods), bool(route.path_allowlist), route.auth is not None, is_signed)
    found = possible & head.names
    if not found:
        return head.travelling
    if second := found & _SECOND_PLACES:
        raise Refusal(
            "second-path",
            f"The header {min(second).decode('ascii')} names a second path, and this route is limited."
            " Read the one and write the other in requests of their own.",
        )
    return [entry for entry in head.travelling if folded(entry[0]) not in found]


@cache
def _possible(has_methods: bool, has_paths: bool, has_auth: bool, is_signed: bool) -> frozenset[bytes]:
    names = _METHODS if has_methods else frozenset()
    if has_paths or has_methods or has_auth:
        names |= _HOSTS | _PATHS
    # A signed copy reads with our key, in any bucket: there the host is a limit too.
    if has_paths or is_signed:
        names |= _SECOND_PLACES
    return names
