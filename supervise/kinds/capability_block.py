"""`capability-block`: an agent asks for another image, and an approval rebuilds the bottle.

Trust boundary: the Dockerfile is an agent's text; what is built is, byte for byte, what was approved.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.http import QueryDict

from botbottle.core.sanitize import make_visible, without_nul
from botbottle.dockerfiles.parse import MOST_BYTES, MOST_INSTRUCTIONS, BadDockerfile
from botbottle.models import Bottle
from egress.models import RouteTableVersion
from egress.policy.table import RouteTable
from supervise.bottles import build_log, image_drift, images
from supervise.bottles.image_drift import ImageFindings, Names
from supervise.bottles.images import Phase
from supervise.digests import digest
from supervise.errors import BadAsk
from supervise.kinds import dockerfile_review
from supervise.models import Decision, Proposal, Rebuild
from supervise.proposals.kind import (
    WAITS,
    Applied,
    ChangesSince,
    Context,
    Edit,
    Json,
    Kind,
    Preview,
    Review,
    Status,
    required_text,
)
from supervise.proposals.risk import Level, Risk

LOG_SHOWN = 1500  # characters
_STEPS = {
    Phase.QUEUED: "it waits for its turn",
    Phase.SNAPSHOT: "step 1 of 4, the state of the workspace is noted",
    Phase.BUILDING: "step 2 of 4, the image is built, with this bottle's routes as its only network",
    Phase.CANARY: "step 3 of 4, a canary of the image is tried",
    Phase.SWAPPING: "step 4 of 4, this bottle is being replaced",
}
_FINGERPRINT = re.compile(r"([0-9a-f]{16}) ([01])")


@dataclass(frozen=True, slots=True)
class DockerfileEdit:
    dockerfile: str

    def payload(self) -> Json:
        return {"dockerfile": self.dockerfile}


class CapabilityBlock(Kind):
    name = "capability-block"
    noun = "container image"
    shown_keys = ("dockerfile",)
    diff_name = "Dockerfile"
    precedents_name = "This bottle’s images"
    edit_template = "supervise/proposal/_edit_dockerfile.html"
    builds_image = True
    title = "Ask for a changed image"
    description = (
        "Ask for another image for this bottle, when a program or library you need is not installed and "
        "cannot be had otherwise. Send the whole new Dockerfile, starting from the present one in "
        "/etc/bot-bottle/current-config/Dockerfile. It is built from its text alone, with this bottle's "
        "routes as its only network: fetch with RUN, through them. Not taken are ADD, ONBUILD, VOLUME, "
        "heredocs (<<), escape and check directives, flags other than COPY --from= and --chown=, and base "
        f"images that are not on the host yet. {WAITS} The answer says what was done with the approved "
        "Dockerfile; commit your work before you ask."
    )
    required = ("dockerfile",)
    properties = {
        "dockerfile": {
            "type": "string",
            "minLength": 1,
            "description": (
                f"The complete text of the new Dockerfile: at most {MOST_BYTES // 1024} KiB and "
                f"{MOST_INSTRUCTIONS} instructions."
            ),
        },
    }

    def parse(self, bottle: Bottle, arguments: Mapping[str, Any]) -> Json:
        dockerfile = required_text(arguments, "dockerfile")
        images.check_dockerfile_for(bottle, dockerfile)
        if without_nul(dockerfile) != dockerfile:  # what is approved must be, byte for byte, what was asked
            raise BadAsk("dockerfile has lone surrogates, which are not text.")
        return {"dockerfile": dockerfile}

    def summary(self, payload: Json) -> str:
        lines = payload["dockerfile"].removesuffix("\n").count("\n") + 1
        return f"rebuild the bottle from a Dockerfile of {lines} line{'s' if lines > 1 else ''}"

    def asked_text(self, payload: Json) -> str:
        return str(payload["dockerfile"])

    def find_facts(self, proposals: Sequence[Proposal], *, edited: Json | None, again: bool) -> ImageFindings:
        pending = [proposal for proposal in proposals if proposal.is_pending]
        return image_drift.check_images(pending, edited=(edited or {}).get("dockerfile", ""), again=again)

    def preview(self, proposal: Proposal, payload: Json, context: Context, *, by_operator: bool) -> Preview:
        before, after = proposal.bottle.dockerfile, payload["dockerfile"]
        names = (context.findings or {}).get((proposal.bottle_id, after), Names())
        warnings = (*names.warnings, *dockerfile_review.warnings_of(before, after))
        return Preview(
            before=before,
            after=after,
            effects=_effects(proposal.bottle),
            warnings=warnings,
            risk=image_risk(after, warnings),
            notes=names.notes,
        )

    def affected_state(self, proposal: Proposal, table: RouteTable, now: datetime) -> object:
        return [proposal.bottle.dockerfile, images.can_be_rebuilt(proposal.bottle)]

    def instructions(self, preview: Preview) -> tuple[Sequence[object], int]:
        return dockerfile_review.changes(preview.before, preview.after)

    def fingerprint(self, review: Review) -> str:
        bottle = review.proposal.bottle
        return f"{digest(bottle.dockerfile)[:16]} {int(images.can_be_rebuilt(bottle))}"

    def changed_since(self, fingerprint: str, now: Review) -> ChangesSince | None:
        match = _FINGERPRINT.fullmatch(fingerprint)
        if match is None:
            return None
        bottle, sentences = now.proposal.bottle, []
        if images.can_be_rebuilt(bottle) != (match[2] == "1"):
            sentences.append(
                "The bottle can no longer be rebuilt: the Dockerfile would only be kept on record."
                if match[2] == "1"
                else "The bottle would only have kept the Dockerfile on record; now it would be rebuilt."
            )
        if match[1] != digest(bottle.dockerfile)[:16]:
            sentences.append("The bottle has another Dockerfile now.")
        return ChangesSince(tuple(sentences))

    def edit_of(self, payload: Json) -> Edit:
        return DockerfileEdit(payload["dockerfile"])

    def edit_of_form(self, form: QueryDict) -> Edit:
        # Browsers send every line break as CRLF, whatever the text had.
        return DockerfileEdit(form.get("dockerfile", "").replace("\r\n", "\n"))

    def check_edit(self, proposal: Proposal, payload: Json) -> Json:
        if set(payload) != {"dockerfile"} or not isinstance(payload["dockerfile"], str):
            raise BadAsk('The payload must be {"dockerfile": "…"}.')
        images.check_dockerfile_for(proposal.bottle, payload["dockerfile"])
        return payload

    def change(
        self,
        proposal: Proposal,
        payload: Json,
        version: RouteTableVersion,
        *,
        author: str,
        now: datetime,
        by_operator: bool,
    ) -> Json:
        granted = {
            "granted": payload,
            "not_granted": proposal.payload if payload != proposal.payload else None,
        }
        if images.can_be_rebuilt(proposal.bottle):
            return {**granted, "applied": Applied.WAITING}
        Bottle.objects.filter(pk=proposal.bottle_id).update(dockerfile=payload["dockerfile"])
        return {**granted, "applied": Applied.RECORDED}

    def enqueue(self, decision: Decision) -> None:
        images.queue(decision)

    def apply(self, decision: Decision) -> None:
        """Start the rebuild. It is a process of its own, which records how it went."""
        rebuild = images.newest_of(decision)
        if rebuild is not None:
            images.launch(rebuild)

    def status_for_agent(self, decision: Decision) -> str:
        """An agent that asked for another image waits until it runs."""
        return Status.PENDING if decision.applied == Applied.WAITING else decision.status

    def explain(self, decision: Decision) -> str:
        """True in every phase on the way to a running bottle."""
        if decision.applied == Applied.RECORDED:
            return (
                "The approved Dockerfile is recorded. The bottle has not been rebuilt: it keeps its "
                "present image until an operator rebuilds it. Continue with what you have."
            )
        rebuild = images.newest_of(decision)
        if rebuild is None:
            return "Approved, and not begun yet. Call check-proposal in a moment."
        if rebuild.phase == Phase.LIVE:
            return _explain_live(rebuild)
        if rebuild.phase == Phase.FAILED:
            return _explain_failure(rebuild)
        step = _STEPS.get(Phase(rebuild.phase), "it is being rebuilt")
        return (
            f"Approved, and not live yet: {step}. Commit your work: the replacement has the same workspace "
            "and branch, and nothing else. Call check-proposal to see how far it is."
        )

    def confirmation(self, decision: Decision) -> str:
        if decision.applied == Applied.RECORDED:
            return ". The Dockerfile is recorded; the bottle runs its present image until it is rebuilt."
        return super().confirmation(decision)

    def applied_label(self, decision: Decision) -> tuple[str, str]:
        if decision.applied == Applied.RECORDED:
            return "", "recorded; the bottle is not rebuilt yet"
        return super().applied_label(decision)


def image_risk(dockerfile: str, warnings: Sequence[str] = ()) -> Risk:
    """A new image is always high risk. The findings say what to look at."""
    changed = [(Level.HIGH, warning) for warning in ("changes the image the agent runs in", *warnings)]
    try:
        flags = dockerfile_review.flags_of(dockerfile)
    except BadDockerfile:  # it passed once: only an old record can be out of date
        flags = ()
    return Risk(Level.HIGH, (*changed, *((Level.HIGH, flag) for flag in flags)))


def _effects(bottle: Bottle) -> tuple[str, ...]:
    if not images.can_be_rebuilt(bottle):
        return ("the Dockerfile is recorded; the bottle has no sandbox here that could be rebuilt",)
    return (
        "the image is built from this Dockerfile, with the bottle's own routes as its only network; base "
        "images are not pulled",
        "once a canary of it works, the bottle is replaced, on the same workspace; the image before is kept",
    )


def _explain_live(rebuild: Rebuild) -> str:
    newest = images.newest_live(rebuild.bottle.slug)
    if newest is None or newest.pk == rebuild.pk:
        return "The replacement is live: this bottle runs the approved Dockerfile, on the same workspace."
    if newest.undoes_id == rebuild.pk:
        return "It was live; an operator has gone back to the image before. Continue with what you have."
    return "It was live, and a later change of the image has taken its place."


def _explain_failure(rebuild: Rebuild) -> str:
    parts = [f"Approved, but not live: {make_visible(rebuild.problem)}. The bottle keeps its image."]
    hosts = [record.host for record in images.refused_hosts(rebuild)]
    if hosts:
        parts.append(
            f"While it was built, the proxy refused {', '.join(hosts)}: ask for what you need with "
            "egress-block; an operator can then build it again."
        )
    parts.append("Otherwise put the Dockerfile right and ask again with capability-block.")
    end = build_log.end(images.log_path(rebuild), LOG_SHOWN).text
    if end:
        parts.append(f"The end of the build's log:\n{make_visible(end).strip()}")
    return " ".join(parts[:-1]) + ("\n" if end else " ") + parts[-1]
