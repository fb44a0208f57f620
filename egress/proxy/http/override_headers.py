"""Headers by which an origin may be led to serve another request than the one that was decided on. Pure.

Trust boundary: they come from inside a bottle. Origins believe them because proxies of their own use them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from egress.policy.routes import Route
from egress.proxy.errors import Refusal
from egress.proxy.http.heads import Field, folded

_METHODS = frozenset(
    {
        b"x-http-method-override",
        b"x-http-method",
        b"x-method-override",
        b"x-original-method",
        b"x-forwarded-method",
    }
)
_PLACES = frozenset(
    {
        # another host
        b"forwarded",
        b"x-forwarded-host",
        b"x-forwarded-port",
        b"x-forwarded-server",
        b"x-host",
        b"x-host-override",
        b"x-http-host-override",
        b"x-original-host",
        b"x-real-host",
        b"x-envoy-original-host",
        # another path
        b"path-info",
        b"script-name",
        b"request-uri",
        b"x-envoy-original-path",
        b"x-forwarded-path",
        b"x-forwarded-prefix",
        b"x-forwarded-uri",
        b"x-forwarded-url",
        b"x-http-path-override",
        b"x-invoke-path",
        b"x-matched-path",
        b"x-original-path",
        b"x-original-uri",
        b"x-original-url",
        b"x-override-url",
        b"x-path-info",
        b"x-proxy-url",
        b"x-request-uri",
        b"x-rewrite-path",
        b"x-rewrite-uri",
        b"x-rewrite-url",
        b"x-script-name",
    }
)
# What is read from or written to besides the path of the request. Without them it would mean something else.
_SECOND_PLACES = frozenset(
    {
        b"destination",
        b"x-amz-copy-source",
        b"x-amz-rename-source",
        b"x-copy-from",
        b"x-cos-copy-source",
        b"x-goog-copy-source",
        b"x-ms-copy-source",
        b"x-ms-rename-source",
        b"x-obs-copy-source",
        b"x-oss-copy-source",
    }
)
ALL = _METHODS | _PLACES | _SECOND_PLACES


def overrides_in(fields: Iterable[Field], route: Route) -> frozenset[bytes]:
    """The names, folded, of headers that could lead the request past what this route allows."""
    is_signed = route.auth is not None and route.auth.scheme == "SigV4"
    possible = _possible(bool(route.methods), bool(route.path_allowlist), route.auth is not None, is_signed)
    return possible.intersection([folded(key) for key, _, _ in fields])


def without_overrides(fields: list[Field], route: Route) -> list[Field]:
    """Raises Refusal where taking the header out would not leave the request that was meant."""
    found = overrides_in(fields, route)
    if not found:
        return fields
    if second := found & _SECOND_PLACES:
        raise Refusal(
            "second-path",
            f"The header {min(second).decode('ascii')} names a second path, and this route is limited."
            " Read the one and write the other in requests of their own.",
        )
    return [entry for entry in fields if folded(entry[0]) not in found]


@cache
def _possible(has_methods: bool, has_paths: bool, has_auth: bool, is_signed: bool) -> frozenset[bytes]:
    names = _METHODS if has_methods else frozenset()
    if has_paths or has_methods or has_auth:
        names |= _PLACES
    # A signed copy reads with our key, in any bucket: there the host is a limit too.
    if has_paths or is_signed:
        names |= _SECOND_PLACES
    return names
