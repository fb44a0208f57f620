"""An operator's edit of a route: the fields of the form, and the payload that they make.

Only contradictions of the form's fields are refused here; `decisions` and `route_actions` check the payload.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from django.http import QueryDict

from egress.policy.routes import OPERATOR_SCHEMES, Route
from supervise.errors import BadAsk

METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE")
UNITS = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}
SEARCHES = {"": None, "yes": True, "no": False}  # of outgoing data; unset: what the proxy can read anyway


@dataclass(frozen=True, slots=True)
class RouteEdit:
    """The form's fields. "All" has to be chosen: an empty field never means it."""

    host: str
    all_paths: bool
    paths: str
    all_methods: bool
    methods: tuple[str, ...]
    scheme: str
    token_ref: str
    header: str
    ttl: str
    unit: str
    max_uses: str
    searches_out: str = ""
    searches_in: bool = False
    pinned: str = ""
    keeps_lease: bool = False  # the lease that the route has, whatever else changes

    @classmethod
    def of_route(cls, route: Route) -> RouteEdit:
        """A lease continues by itself: the form begins with keeping it."""
        plain = {name: value for name, value in route.as_dict().items() if name != "lease"}
        return replace(cls.of_payload(plain), keeps_lease=route.lease is not None)

    @classmethod
    def of_payload(cls, payload: Mapping[str, Any]) -> RouteEdit:
        auth, lease = payload.get("auth") or {}, payload.get("lease") or {}
        paths, methods = payload.get("path_allowlist") or [], payload.get("methods") or []
        dlp = payload.get("dlp") or {}
        seconds = lease.get("ttl_seconds")
        unit = next(name for name, size in UNITS.items() if not seconds or seconds % size == 0)
        return cls(
            host=payload["host"],
            all_paths=not paths,
            paths="\n".join(paths),
            all_methods=not methods,
            methods=tuple(methods),
            scheme=auth.get("scheme", ""),
            token_ref=auth.get("token_ref", ""),
            header=auth.get("header", ""),
            ttl=str(seconds // UNITS[unit]) if seconds else "",
            unit=unit if seconds else "hours",
            max_uses=str(lease.get("max_uses") or ""),
            searches_out=next(word for word, value in SEARCHES.items() if value is dlp.get("out")),
            searches_in=bool(dlp.get("in")),
            pinned="\n".join(payload.get("pinned_addresses") or []),
        )

    @classmethod
    def of_form(cls, form: QueryDict) -> RouteEdit:
        return cls(
            host=form.get("host", "").strip(),
            all_paths=form.get("paths_are") == "all",
            paths=form.get("paths", "").replace("\r\n", "\n"),
            all_methods=form.get("methods_are") == "all",
            methods=tuple(form.getlist("methods")),
            scheme=form.get("scheme", ""),
            token_ref=form.get("token_ref", "").strip(),
            header=form.get("header", "").strip(),
            ttl=form.get("ttl", "").strip(),
            unit=form.get("unit", ""),
            max_uses=form.get("max_uses", "").strip(),
            searches_out=form.get("searches_out", ""),
            searches_in=form.get("searches_in") == "yes",
            pinned=form.get("pinned", "").replace("\r\n", "\n"),
            keeps_lease=form.get("lease_is") == "kept",
        )

    @property
    def schemes(self) -> tuple[str, ...]:
        return OPERATOR_SCHEMES

    @property
    def units(self) -> tuple[str, ...]:
        return tuple(UNITS)

    @property
    def choices(self) -> tuple[str, ...]:
        """The usual methods, and the unusual ones of this proposal."""
        return (*METHODS, *(method for method in self.methods if method not in METHODS))

    def payload(self) -> dict[str, Any]:
        """Raises BadAsk where the fields contradict each other."""
        parts = (self._paths(), self._methods(), self._auth(), self._lease(), self._dlp(), self._pinned())
        return {"host": self.host} | {key: value for part in parts for key, value in part.items()}

    def changes(self, start: RouteEdit) -> dict[str, Any]:
        """The fields that differ from those the form started with; null takes one away. Raises BadAsk.

        The host is not among them: it identifies the route.
        """
        old, new = start.payload(), self.payload() | {"host": start.host}
        fields = {key: new.get(key) for key in (*old, *new) if old.get(key) != new.get(key)}
        if start.keeps_lease and not self.keeps_lease:
            fields["lease"] = new.get("lease")
        return fields

    @property
    def has_settings(self) -> bool:
        """Whether something that only operators set differs from the default."""
        return bool(self.searches_out or self.searches_in or self.pinned.strip())

    def _paths(self) -> dict[str, Any]:
        paths = [line.strip() for line in self.paths.split("\n") if line.strip()]
        if self.all_paths:
            return {}
        if not paths:
            raise BadAsk("Write at least one path, each on its own line, or choose all paths.")
        return {"path_allowlist": paths}

    def _methods(self) -> dict[str, Any]:
        if self.all_methods:
            return {}
        if not self.methods:
            raise BadAsk("Tick at least one method, or choose all methods.")
        return {"methods": list(self.methods)}

    def _auth(self) -> dict[str, Any]:
        if not self.scheme:
            if self.token_ref or self.header:
                raise BadAsk("Choose a scheme for the credential, or leave its fields empty.")
            return {}
        auth = {"scheme": self.scheme, "token_ref": self.token_ref}
        return {"auth": auth | ({"header": self.header} if self.header else {})}

    def _lease(self) -> dict[str, Any]:
        lease: dict[str, int] = {}
        if self.keeps_lease:
            return {}
        if self.ttl:
            lease["ttl_seconds"] = _whole(self.ttl, "The time") * _seconds_of(self.unit)
        if self.max_uses:
            lease["max_uses"] = _whole(self.max_uses, "The number of uses")
        return {"lease": lease} if lease else {}

    def _dlp(self) -> dict[str, Any]:
        if self.searches_out not in SEARCHES:
            raise BadAsk("Choose from the list how outgoing data is searched.")
        out = SEARCHES[self.searches_out]
        if out is None and not self.searches_in:
            return {}
        return {"dlp": ({} if out is None else {"out": out}) | {"in": self.searches_in}}

    def _pinned(self) -> dict[str, Any]:
        pinned = self.pinned.split()
        return {"pinned_addresses": pinned} if pinned else {}


def _whole(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise BadAsk(f"{what} must be a whole number.")
    return int(text)


def _seconds_of(unit: str) -> int:
    if unit not in UNITS:
        raise BadAsk(f"The time is counted in {', '.join(UNITS)}.")
    return UNITS[unit]
