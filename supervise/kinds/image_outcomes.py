"""What an agent is told about an approved Dockerfile, true in every phase of its way to a running bottle."""

from __future__ import annotations

from supervise.bottles import build_log, images
from supervise.bottles.images import Phase
from supervise.models import Decision, Rebuild
from supervise.sanitize import make_visible

Applied = Decision.Applied
LOG_SHOWN = 1500  # characters
_STEPS = {
    Phase.QUEUED: "it waits for its turn",
    Phase.SNAPSHOT: "step 1 of 4, the state of the workspace is noted",
    Phase.BUILDING: "step 2 of 4, the image is built, with this bottle's routes as its only network",
    Phase.CANARY: "step 3 of 4, a canary of the image is tried",
    Phase.SWAPPING: "step 4 of 4, this bottle is being replaced",
}
_COMMIT = (
    "Commit your work: the replacement goes on with the same workspace and branch, and with nothing else"
)


def explain_image(decision: Decision) -> str:
    if decision.applied == Applied.RECORDED:
        return (
            "The approved Dockerfile is recorded. The bottle has not been rebuilt: it goes on with its "
            "present image until an operator rebuilds it. Go on with what you have."
        )
    rebuild = images.newest_of(decision)
    if rebuild is None:
        return "Approved, and not begun yet. Call check-proposal in a moment."
    if rebuild.phase == Phase.LIVE:
        return _explain_live(rebuild)
    if rebuild.phase == Phase.FAILED:
        return _explain_failure(rebuild)
    step = _STEPS.get(Phase(rebuild.phase), "it is being rebuilt")
    return f"Approved, and not live yet: {step}. {_COMMIT}. Call check-proposal to see how far it is."


def _explain_live(rebuild: Rebuild) -> str:
    newest = images.newest_live(rebuild.bottle.slug)
    if newest is None or newest.pk == rebuild.pk:
        return "The replacement is live: this bottle runs the approved Dockerfile, on the same workspace."
    if newest.undoes_id == rebuild.pk:
        return "It was live; an operator has gone back to the image before. Go on with what you have."
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
