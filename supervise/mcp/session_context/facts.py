"""The session context as data: which bottle this is, what it may reach, and what was decided.

Read-only, and bounded in every direction. Notes and justifications are data that somebody wrote; the secret
of a credential is never included, neither by value nor by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from django.db.models import F, QuerySet, TextField
from django.db.models.fields.json import KT
from django.db.models.functions import Cast, Left
from django.utils import timezone

from botbottle.core.plan_types import CONFIG_INSIDE, WORKSPACE_INSIDE
from botbottle.models import Bottle
from supervise.errors import BadAsk
from supervise.models import Decision, Proposal
from supervise.proposals import queries
from supervise.proposals.kind import kind_of

Json = dict[str, Any]

FORMAT_VERSION: Final = 1
MAX_HANDLES = 50
MAX_ROUTES = 100
MAX_ENTRIES = 20  # paths or methods of one route or ask
MAX_DECISIONS = 10
MAX_OPEN = 20
MAX_EPISODES = 50
MAX_COUNTED = 200  # more are not counted: a long history would delay every session
MAX_JUSTIFICATION = 1000
MAX_NOTES = 2000
MAX_VALUE = 1000  # one text inside an ask
_MAX_PAYLOAD = 16_000  # a longer ask is not read at all
_SESSION_ID = re.compile(r"[A-Za-z0-9._:@/+=-]{1,128}")


class Depth(StrEnum):
    MINIMAL = "minimal"
    STANDARD = "standard"
    DEEP = "deep"


class Format(StrEnum):
    JSON = "json"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class ContextAsk:
    depth: Depth = Depth.STANDARD
    format: Format = Format.JSON
    session_id: str | None = None


def parse_ask(params: Mapping[str, Any]) -> ContextAsk:
    """Parse the parameters. Raises BadAsk. Unknown names are ignored: hosts send parameters for other sources
    too.
    """
    return ContextAsk(
        depth=Depth(_choice(params, "depth", Depth, Depth.STANDARD)),
        format=Format(_choice(params, "format", Format, Format.JSON)),
        session_id=_session_id(params.get("session_id")),
    )


def session_context(bottle: Bottle, ask: ContextAsk) -> Json:
    """The context. Each depth adds one layer to the one before."""
    routes = queries.live_routes(bottle)
    context: Json = {
        "version": FORMAT_VERSION,
        "bottle": bottle.slug,
        "session_id": ask.session_id,
        "depth": ask.depth.value,
        "generated_at": _stamp(timezone.now()),
        "handles": _handles(bottle, routes["version"]),
    }
    if ask.depth is not Depth.MINIMAL:
        context["l0"] = _identity(bottle, routes)
        context["l1"] = _summary(bottle)
    if ask.depth is Depth.DEEP:
        context["l2"] = _episodes(bottle)
    return context


# --- The layers


def _handles(bottle: Bottle, live_version: int) -> Json:
    """Ids and addresses for further questions, without any text that somebody wrote."""
    own = Proposal.objects.filter(bottle=bottle).order_by("-created_at", "-pk")
    newest = list(own.values_list("pk", "tool", "status")[:MAX_HANDLES])
    return {
        "live_version": live_version,
        "proposals": [
            {"proposal_id": str(pk), "tool": tool, "status": status} for pk, tool, status in newest
        ],
        "proposals_left_out": _counted(own[MAX_HANDLES:]) if len(newest) == MAX_HANDLES else 0,
        "current_config": CONFIG_INSIDE,
        "endpoints": {"mcp": "/mcp", "rpc": "/rpc", "context": "/session-context"},
    }


def _identity(bottle: Bottle, live: Mapping[str, Any]) -> Json:
    routes, hosts = live["routes"], live["gate_hosts"]
    return {
        "bottle": bottle.slug,
        "backend": bottle.backend,
        "created_at": _stamp(bottle.created_at),
        "workspace": WORKSPACE_INSIDE,
        "reach": {
            "version": live["version"],
            "source": live["source"],
            "routes": [_bounded(route) for route in routes[:MAX_ROUTES]],
            "routes_left_out": max(0, len(routes) - MAX_ROUTES),
            "gate_hosts": hosts[:MAX_ROUTES],
            "gate_hosts_left_out": max(0, len(hosts) - MAX_ROUTES),
        },
    }


def _summary(bottle: Bottle) -> Json:
    pending = _readable(Proposal.objects.filter(bottle=bottle, status=Proposal.Status.PENDING))
    own = Proposal.objects.filter(bottle=bottle).order_by()
    counts = {status: _counted(own.filter(status=status)) for status in Proposal.Status.values}
    return {
        "counts": counts,
        "open": [_line(proposal) for proposal in pending[:MAX_OPEN]],
        "open_left_out": max(0, counts[Proposal.Status.PENDING] - MAX_OPEN),
        "decisions": [_decided(proposal) for proposal in _newest_decided(bottle, MAX_DECISIONS)],
    }


def _episodes(bottle: Bottle) -> Json:
    found = _newest_decided(bottle, MAX_EPISODES).annotate(
        asked_text=_start_of_json("payload"),
        granted_text=_start_of_json("decision__granted"),
        not_granted_text=_start_of_json("decision__not_granted"),
    )
    episodes = [_episode(proposal) for proposal in found]
    older = Decision.objects.filter(bottle=bottle).order_by("-created_at", "-pk")[MAX_EPISODES:]
    not_granted = _counted(older) if len(episodes) == MAX_EPISODES else 0
    return {"episodes": episodes, "episodes_left_out": not_granted}


# --- One proposal


def _line(proposal: Any) -> Json:
    return {
        "proposal_id": str(proposal.pk),
        "tool": proposal.tool,
        "target": _cut(proposal.host or kind_of(proposal).noun, 255),
        "filed_at": _stamp(proposal.created_at),
        "justification": _cut(proposal.justification_start, MAX_JUSTIFICATION),
    }


def _decided(proposal: Any) -> Json:
    return {
        "proposal_id": str(proposal.pk),
        "tool": proposal.tool,
        "target": _cut(proposal.host or kind_of(proposal).noun, 255),
        "status": proposal.status,
        "decided_at": _stamp(proposal.decided_at),
        "applied": proposal.applied,
        "live_version": proposal.live_version,
        "apply_error": _cut(proposal.error_start, MAX_VALUE),
        "notes": _cut(proposal.notes_start, MAX_NOTES),
    }


def _episode(proposal: Any) -> Json:
    keys = (*kind_of(proposal).shown_keys, "ignored")
    return {
        **_line(proposal),
        **_decided(proposal),
        "asked": _shown(proposal.asked_text, keys),
        "granted": _shown(proposal.granted_text, keys),
        "not_granted": _shown(proposal.not_granted_text, keys),
    }


def _shown(text: str | None, keys: Sequence[str]) -> Json | None:
    """The public fields of an ask. For a credential only that there is one: its name is the operator's."""
    if text is None or text == "null":
        return None
    if len(text) > _MAX_PAYLOAD:
        return {"too_long": True}
    value = json.loads(text)
    if value.get("arguments"):  # as one text, they can be cut whatever their shape
        value["arguments"] = json.dumps(value["arguments"], ensure_ascii=False, sort_keys=True)
    shown = _bounded({key: value[key] for key in keys if value.get(key)})
    if value.get("auth") or value.get("auth_injected"):
        shown["auth"] = True
    return shown


# --- Reading


def _readable(proposals: QuerySet[Proposal]) -> QuerySet[Any]:
    """The newest first, with only the beginnings of long texts: an agent may have submitted megabytes."""
    return (
        proposals.annotate(
            host=KT("payload__host"),
            justification_start=Left("justification", MAX_JUSTIFICATION + 1),
        )
        .only("pk", "tool", "status", "created_at")
        .order_by("-created_at", "-pk")
    )


def _newest_decided(bottle: Bottle, most: int) -> QuerySet[Any]:
    newest = Decision.objects.filter(bottle=bottle).order_by("-created_at", "-pk")
    chosen = list(newest.values_list("proposal", flat=True)[:most])
    decided: QuerySet[Any] = _readable(Proposal.objects.filter(pk__in=chosen)).annotate(
        decided_at=F("decision__created_at"),
        applied=F("decision__applied"),
        live_version=F("decision__live_version"),
        error_start=Left("decision__apply_error", MAX_VALUE + 1),
        notes_start=Left("decision__notes", MAX_NOTES + 1),
    )
    return decided.order_by("-decided_at", "pk")


def _counted(rows: QuerySet[Any]) -> int:
    return rows[:MAX_COUNTED].count()


def _start_of_json(column: str) -> Left:
    return Left(Cast(column, TextField()), _MAX_PAYLOAD + 1)


# --- Bounds


def _bounded(fields: Mapping[str, Any]) -> Json:
    """Cut long texts and long lists, and count the rest."""
    bounded: Json = {}
    for key, value in fields.items():
        if isinstance(value, list):
            bounded[key] = [_cut(item, MAX_VALUE) for item in value[:MAX_ENTRIES]]
            if len(value) > MAX_ENTRIES:
                bounded[f"{key}_left_out"] = len(value) - MAX_ENTRIES
        else:
            bounded[key] = _cut(value, MAX_VALUE) if isinstance(value, str) else value
    return bounded


def _cut(text: str | None, limit: int) -> str:
    text = text or ""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _stamp(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


# --- The ask


def _choice(params: Mapping[str, Any], name: str, choices: Iterable[str], default: str) -> str:
    value = params.get(name)
    if value is None:
        return default
    known = [str(choice) for choice in choices]
    if value not in known:
        raise BadAsk(f"{name} must be one of {', '.join(known)}.")
    return str(value)


def _session_id(value: object) -> str | None:
    if value is None or value == "":
        return None
    if not isinstance(value, str) or not _SESSION_ID.fullmatch(value):
        raise BadAsk(
            "session_id must be 1 to 128 letters, digits or '._:@/+=-'. Shorten it, or leave it out."
        )
    return value
