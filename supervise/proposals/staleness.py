"""What changed after an operator looked, told with a form that came too late and decided nothing.

A form carries a short note of what it showed. The note only chooses what is told; the digest alone decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from botbottle.core.plan_types import BackendError
from botbottle.manifest import reader as manifests
from botbottle.models import Bottle
from egress.models import RouteTableVersion
from supervise.bottles import images, lifecycle
from supervise.diffs import Diff, line_diff
from supervise.digests import digest
from supervise.models import Decision, Proposal
from supervise.proposals.review import Review, related_routes, table_text

APPROVED_BEFORE = 20  # Dockerfiles that the one seen is looked for among
_NOTE = re.compile(r"([0-9]{1,9}) ([0-9]{1,11}\.[0-9]{6}) ([0-9a-f]{16}) ([01]) ([0-9a-f]{16})")


@dataclass(frozen=True, slots=True)
class ChangesSince:
    """`diff` is that of the bottle's route table, or of its Dockerfile."""

    sentences: tuple[str, ...]
    diff: Diff | None


def note_of(review: Review) -> str:
    """Table version, time, Dockerfile, whether that can be built here, risk."""
    bottle, at = review.proposal.bottle, review.at.timestamp()
    image, builds = _short(bottle.dockerfile), int(images.can_be_rebuilt(bottle))
    return f"{review.table_version} {at:.6f} {image} {builds} {_short(_risk(review))}"


def changed_since(note: str, now: Review) -> ChangesSince | None:
    """None when the note tells nothing, or nothing of what it names changed."""
    match = _NOTE.fullmatch(note)
    if match is None or now.proposal.tool == Proposal.Tool.MCP_TOOL:
        return None
    version, at, image, builds, risk = match.groups()
    if now.proposal.tool == Proposal.Tool.CAPABILITY:
        found = _image_changed(now, image, builds == "1", is_same_risk=risk == _short(_risk(now)))
    else:
        moment = datetime.fromtimestamp(float(at), UTC)
        found = _table_changed(now, int(version), moment, is_same_risk=risk == _short(_risk(now)))
    return found if found.sentences or found.diff else None


def _table_changed(now: Review, seen_version: int, seen_at: datetime, *, is_same_risk: bool) -> ChangesSince:
    wanted = RouteTableVersion.objects.filter(
        bottle=now.proposal.bottle_id, version__in=[seen_version, now.table_version]
    )
    tables = {version.version: version.table for version in wanted}
    sentences = [
        f"The lease of {route.host} ended."
        for route in related_routes(now.proposal, tables[now.table_version])
        if route.is_over(now.at) and not route.is_over(seen_at)
    ]
    if not is_same_risk:
        sentences.append(f"It is {now.risk.level.word} risk now: {'; '.join(now.risk.reasons)}.")
    seen = tables.get(seen_version)
    return ChangesSince(tuple(sentences), None if seen is None else _difference(table_text(seen), now.before))


def _image_changed(now: Review, seen_image: str, was_built_here: bool, *, is_same_risk: bool) -> ChangesSince:
    bottle, sentences = now.proposal.bottle, []
    if images.can_be_rebuilt(bottle) != was_built_here:
        sentences.append(
            "The bottle would only keep the Dockerfile on record; it can be rebuilt now, and would be."
            if not was_built_here
            else "The bottle can no longer be rebuilt: the Dockerfile would only be kept on record."
        )
    if seen_image == _short(bottle.dockerfile):
        if not is_same_risk:  # of the same text against the same one: the images that it names are others
            told = "; ".join(now.warnings) or "nothing"
            sentences.append(f"What the engine has under the names in it changed. Told now: {told}.")
        return ChangesSince(tuple(sentences), None)
    seen = next((text for text in _dockerfiles_of(bottle) if _short(text) == seen_image), None)
    if seen is None:
        sentences.append("The bottle has another Dockerfile now; the one you saw is kept nowhere.")
    return ChangesSince(tuple(sentences), None if seen is None else _difference(seen, bottle.dockerfile))


def _dockerfiles_of(bottle: Bottle) -> Iterator[str]:
    """None at all, those that were approved, the manifest's own."""
    yield ""
    granted = Decision.objects.filter(
        bottle=bottle, tool=Proposal.Tool.CAPABILITY, final_payload__isnull=False
    )
    payloads = granted.order_by("-created_at").values_list("final_payload", flat=True)[:APPROVED_BEFORE]
    yield from (payload["dockerfile"] for payload in payloads if payload)
    if bottle.manifest:
        try:
            path = lifecycle.manifest_path(bottle.slug)
            yield images.dockerfile_of(manifests.parse(bottle.manifest, bottle.slug, path=path))
        except (BackendError, OSError, ValueError):
            return  # it is gone, or not on this host


def _difference(before: str, after: str) -> Diff | None:
    diff = line_diff(before, after)
    return diff if diff.rows else None


def _risk(review: Review) -> list[object]:
    return [review.risk.level, review.risk.reasons]


def _short(value: object) -> str:
    return digest(value)[:16]
