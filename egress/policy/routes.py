"""One route: what a bottle may reach on one host, with which credential and until when.

Pure and immutable. Constructors validate and normalise, so a Route that exists is well-formed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Any

from egress.policy import secret_names
from egress.policy.aws_scope import signing_scope
from egress.policy.errors import BadMethod, BadRoute, quoted
from egress.policy.hostnames import canonical_pattern
from egress.policy.paths import canonical_prefix, prefix_allows, reduce_prefixes

AGENT_SCHEMES = ("Bearer", "token")
OPERATOR_SCHEMES = (*AGENT_SCHEMES, "Basic", "header", "SigV4")
MAX_USES = 1_000_000_000

_METHOD = re.compile(r"[A-Z][A-Z-]{0,31}")
_HEADER = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")
# Headers that frame or route the message: a credential there would change what is sent, not who sends it.
_FRAMING_HEADERS = frozenset(
    {
        "host",
        "connection",
        "content-length",
        "content-type",
        "transfer-encoding",
        "te",
        "trailer",
        "upgrade",
        "keep-alive",
        "expect",
        "proxy-authorization",
        "proxy-connection",
        "proxy-authenticate",
        "forwarded",
        "via",
    }
)


@dataclass(frozen=True, slots=True)
class Auth:
    """Which credential the proxy adds. `token_ref` is the name of a secret, never the secret."""

    scheme: str
    token_ref: str
    header: str = ""

    def __post_init__(self) -> None:
        if self.scheme not in OPERATOR_SCHEMES:
            schemes = ", ".join(OPERATOR_SCHEMES)
            raise BadRoute(f"auth.scheme must be one of {schemes}: got {quoted(self.scheme)}")
        if not isinstance(self.token_ref, str) or not secret_names.NAME.fullmatch(self.token_ref):
            raise BadRoute(
                "auth.token_ref must name a secret, such as 'GITHUB_TOKEN', never the secret itself:"
                " 1 to 128 letters, digits or '_.-', starting with a letter or '_'"
            )
        if self.scheme != "header" and self.header:
            raise BadRoute("auth.header is only for the scheme 'header'")
        if self.scheme == "header":
            valid = isinstance(self.header, str) and _HEADER.fullmatch(self.header)
            if not valid or self.header.lower() in _FRAMING_HEADERS:
                raise BadRoute(
                    "auth.header must name the header that carries the credential, such as 'X-Api-Key'"
                )

    def as_dict(self) -> dict[str, str]:
        plain = {"scheme": self.scheme, "token_ref": self.token_ref}
        return {**plain, "header": self.header} if self.header else plain

    @classmethod
    def from_dict(cls, plain: object) -> Auth:
        known = known_keys(plain, "auth", ("scheme", "token_ref", "header"), required=("scheme", "token_ref"))
        return cls(known["scheme"], known["token_ref"], known.get("header", ""))


@dataclass(frozen=True, slots=True)
class Lease:
    """A route's end. None means no limit of that kind.

    Uses are requests on inspected routes and connections on bare ones, counted from `granted_at`: a grant
    that renews the lease starts the count again.
    """

    expires_at: datetime | None = None
    max_uses: int | None = None
    granted_at: datetime | None = None

    def __post_init__(self) -> None:
        for name in ("expires_at", "granted_at"):
            moment = getattr(self, name)
            if moment is not None:
                object.__setattr__(self, name, whole_second(moment, f"lease.{name}"))
        if self.max_uses is not None and (
            type(self.max_uses) is not int or not 1 <= self.max_uses <= MAX_USES
        ):
            raise BadRoute(
                f"lease.max_uses must be a whole number from 1 to {MAX_USES}: got {quoted(self.max_uses)}"
            )
        if self.expires_at is None and self.max_uses is None:
            raise BadRoute("lease needs an end: expires_at, max_uses or both")

    def is_over(self, now: datetime) -> bool:
        return self.expires_at is not None and self.expires_at <= now

    def as_dict(self) -> dict[str, Any]:
        return {
            "expires_at": _stamp(self.expires_at),
            "max_uses": self.max_uses,
            "granted_at": _stamp(self.granted_at),
        }

    @classmethod
    def from_dict(cls, plain: object) -> Lease:
        known = known_keys(plain, "lease", ("expires_at", "max_uses", "granted_at"))
        return cls(
            _moment(known.get("expires_at"), "lease.expires_at"),
            known.get("max_uses"),
            _moment(known.get("granted_at"), "lease.granted_at"),
        )


@dataclass(frozen=True, slots=True)
class Dlp:
    """What is searched for secrets. In its plain form `incoming` is `in`.

    Unset, `out` searches what the proxy can read of what leaves anyway; set to true, it makes the proxy look
    inside TLS, as `incoming` does for answers.
    """

    out: bool | None = None
    incoming: bool = False

    def __post_init__(self) -> None:
        if self.out is not None and type(self.out) is not bool:
            raise BadRoute("dlp.out must be true or false")
        if type(self.incoming) is not bool:
            raise BadRoute("dlp.in must be true or false")

    @property
    def searches_requests(self) -> bool:
        return self.out is not False

    @property
    def looks_inside(self) -> bool:
        return self.out is True or self.incoming

    def as_dict(self) -> dict[str, bool]:
        plain = {} if self.out is None else {"out": self.out}
        return {**plain, "in": self.incoming}

    @classmethod
    def from_dict(cls, plain: object) -> Dlp:
        known = known_keys(plain, "dlp", ("out", "in"))
        return cls(known.get("out"), known.get("in", False))


@dataclass(frozen=True, slots=True)
class Route:
    """Empty `path_allowlist` and `methods` mean all. `host` may be a `*.` pattern."""

    host: str
    path_allowlist: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    auth: Auth | None = None
    lease: Lease | None = None
    dlp: Dlp = field(default_factory=Dlp)
    pinned_addresses: tuple[str, ...] = ()
    is_cacheable: bool = field(init=False, repr=False, compare=False)  # the fast path may serve it

    def __post_init__(self) -> None:
        normal = {
            "host": canonical_pattern(self.host),
            "path_allowlist": reduce_prefixes(
                canonical_prefix(text, field=f"path_allowlist[{index}]")
                for index, text in enumerate(self.path_allowlist)
            ),
            "methods": canonical_methods(self.methods),
            "pinned_addresses": canonical_addresses(self.pinned_addresses),
            "is_cacheable": _has_defaults(self, _FAST_ROUTE) and _has_defaults(self.dlp, _FAST_DLP),
        }
        for name, value in normal.items():
            object.__setattr__(self, name, value)
        if self.auth is not None and self.auth.scheme == "SigV4":
            signing_scope(self.host)

    @property
    def is_bare(self) -> bool:
        """Needs no look inside TLS, so it can be tunnelled.

        A lease leaves it bare: its end cuts the tunnel, and its uses count connections instead of requests.
        """
        return not (self.path_allowlist or self.methods or self.auth or self.dlp.looks_inside)

    def is_over(self, now: datetime) -> bool:
        return self.lease is not None and self.lease.is_over(now)

    def admits_path(self, path: str) -> bool:
        """`path` came through `canonical_path`."""
        for prefix in self.path_allowlist:  # asked for every request: a generator would cost twice as much
            if prefix_allows(prefix, path):
                return True
        return not self.path_allowlist

    def admits_method(self, method: str) -> bool:
        return not self.methods or method in self.methods

    def as_dict(self) -> dict[str, Any]:
        """Everything, for storage. What is not set is left out."""
        plain: dict[str, Any] = {
            "host": self.host,
            "path_allowlist": list(self.path_allowlist),
            "methods": list(self.methods),
        }
        if self.auth:
            plain["auth"] = self.auth.as_dict()
        if self.lease:
            plain["lease"] = self.lease.as_dict()
        if self.dlp != Dlp():
            plain["dlp"] = self.dlp.as_dict()
        if self.pinned_addresses:
            plain["pinned_addresses"] = list(self.pinned_addresses)
        return plain

    def as_public_dict(self) -> dict[str, Any]:
        """What the bottle's agent may know: whether a credential is added, not which."""
        lease = self.lease
        return {
            "host": self.host,
            "path_allowlist": list(self.path_allowlist),
            "methods": list(self.methods),
            "lease": {"expires_at": _stamp(lease.expires_at), "max_uses": lease.max_uses} if lease else None,
            "auth_injected": self.auth is not None,
        }

    @classmethod
    def from_dict(cls, plain: object) -> Route:
        known = known_keys(plain, "route", cls.__match_args__, required=("host",))
        return cls(
            host=known["host"],
            path_allowlist=tuple(listed(known.get("path_allowlist", ()), "path_allowlist")),
            methods=tuple(listed(known.get("methods", ()), "methods")),
            auth=Auth.from_dict(known["auth"]) if known.get("auth") is not None else None,
            lease=Lease.from_dict(known["lease"]) if known.get("lease") is not None else None,
            dlp=Dlp.from_dict(known["dlp"]) if known.get("dlp") is not None else Dlp(),
            pinned_addresses=tuple(listed(known.get("pinned_addresses", ()), "pinned_addresses")),
        )


# The attributes of a route, and of its `dlp`, that the fast path is right for whatever they hold.
_FAST_ROUTE = frozenset({"host", "path_allowlist", "methods", "pinned_addresses", "dlp", "is_cacheable"})
_FAST_DLP = frozenset({"out"})


def _has_defaults(instance: Route | Dlp, besides: frozenset[str]) -> bool:
    """Every other attribute must hold its default, so that a new one switches the fast path off."""
    others = [each for each in fields(instance) if each.name not in besides]
    return all(getattr(instance, each.name) == each.default for each in others)


def canonical_methods(methods: Sequence[object]) -> tuple[str, ...]:
    """Upper case, sorted, each once."""
    found = set()
    for index, method in enumerate(methods):
        name = method.upper() if isinstance(method, str) and method.isascii() else ""
        if not _METHOD.fullmatch(name) or name in {"CONNECT", "TRACE"}:
            raise BadMethod(
                f"methods[{index}] must be an HTTP method such as 'GET' or 'POST': got {quoted(method)}"
            )
        found.add(name)
    return tuple(sorted(found))


def canonical_addresses(addresses: Sequence[object]) -> tuple[str, ...]:
    found = set()
    for index, text in enumerate(addresses):
        try:
            if not isinstance(text, str) or "%" in text:
                raise ValueError
            found.add(str(ip_address(text)))
        except ValueError as error:
            raise BadRoute(f"pinned_addresses[{index}] must be an IP address: got {quoted(text)}") from error
    return tuple(sorted(found))


def known_keys(
    plain: object, what: str, allowed: Sequence[str], *, required: Sequence[str] = ()
) -> dict[str, Any]:
    """`plain` as a dict that has the required keys and no others than the allowed ones."""
    if not isinstance(plain, Mapping):
        raise BadRoute(f"{what} must be an object with {', '.join(allowed)}")
    for key in plain:
        if key not in allowed:
            raise BadRoute(f"{what} has an unknown key {quoted(key)}: it takes {', '.join(allowed)}")
    for key in required:
        if plain.get(key) is None:
            raise BadRoute(f"{what}.{key} is required")
    return dict(plain)


def listed(value: object, what: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise BadRoute(f"{what} must be a list: got {quoted(value)}")
    return value


def whole_second(moment: datetime, what: str) -> datetime:
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise BadRoute(f"{what} must be a time with a time zone")
    return moment.astimezone(UTC).replace(microsecond=0)


def _stamp(moment: datetime | None) -> str | None:
    return None if moment is None else moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _moment(text: object, what: str) -> datetime | None:
    if text is None:
        return None
    try:
        return whole_second(datetime.fromisoformat(str(text)), what)
    except (ValueError, OverflowError) as error:
        raise BadRoute(f"{what} must be a time such as 2030-01-31T12:00:00Z: got {quoted(text)}") from error
