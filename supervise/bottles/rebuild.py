"""Replaces a bottle's image: inspect the workspace, build, try a canary, swap. A failure changes nothing.

Trust boundary: the Dockerfile is an agent's, approved by operators. What is built and run carries the digest
of exactly that text. Each bottle has one rebuild at a time, whose process holds a lock.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path

from django.conf import settings
from django.contrib.auth.models import AnonymousUser, User
from django.db import transaction
from django.utils import timezone

from botbottle import backends
from botbottle.backends import image_builders
from botbottle.backends.base import Progress
from botbottle.core import locks
from botbottle.core.plan_types import BackendError, Plan
from botbottle.core.sanitize import without_nul, without_nul_json
from botbottle.dockerfiles.parse import digest_of
from botbottle.launch import canary, journal, plan_cache, scratch_sandbox
from botbottle.models import Bottle
from egress.tables import homes, versions
from supervise import audit
from supervise.access import permissions
from supervise.bottles import images, lifecycle, reconcile
from supervise.bottles import records as bottles
from supervise.bottles.build_log import Log
from supervise.bottles.images import Image, Phase
from supervise.errors import NotPermitted, SuperviseError
from supervise.models import Decision, Rebuild
from supervise.proposals import apply

log = logging.getLogger(__name__)
KEPT_IMAGES = 3
MOST_ATTEMPTS = 5
INTERRUPTED = "the build was interrupted: its process was killed. The bottle was not changed"


class NotRebuilt(SuperviseError):
    """There is nothing to go back to or to retry; the message says why."""

    code = "not_rebuilt"


def perform(rebuild_id: int) -> None:
    """Do a rebuild, if it is next and no other process does it. The outcome is in its row."""
    rebuild = Rebuild.objects.select_related("bottle", "decision__proposal__bottle").get(pk=rebuild_id)
    images.has_started(rebuild)
    try:
        with _lock(rebuild.bottle):
            rebuild.refresh_from_db(fields=["phase"])
            if not rebuild.is_open or _is_behind(rebuild):
                return
            if rebuild.phase != Phase.QUEUED:
                _clean_up_after_a_kill(rebuild)
                return
            progress = Log(images.log_path(rebuild))
            try:
                _attempt(rebuild, progress)
            finally:
                progress.close()
    except BlockingIOError:
        log.info("Rebuild %s waits: another one of %s is at work.", rebuild_id, rebuild.bottle.slug)


def _attempt(rebuild: Rebuild, progress: Log) -> None:
    try:
        if rebuild.undoes_id is None:
            _make(rebuild, progress)
        _swap(rebuild, progress)
    except Exception as error:
        reason = _reason(error)
        progress(reason)
        _fail(rebuild, reason)
    else:
        _prune(rebuild.bottle)


def _reason(error: Exception) -> str:
    """The reason for operators and the agent; of our own errors it only says that there is one."""
    if isinstance(error, (BackendError, SuperviseError, OSError)):
        return str(error)
    log.error("A rebuild failed.", exc_info=error)
    return f"bot-bottle itself failed ({type(error).__name__}): an operator finds more in its logs"


def _make(rebuild: Rebuild, progress: Log) -> None:
    """Build and test the image. Whatever can fail fails here, while the old bottle still runs."""
    slug = _slug_of(rebuild)
    manifest, plan = lifecycle.plan(slug)
    own = image_builders.images(plan.backend, Path(settings.BOTTLE_HOME), slug)
    images.enter(rebuild, Phase.SNAPSHOT, made_for=images.source_of(manifest))
    rebuild.workspace = _inspect_workspace(rebuild, plan, own, progress)
    images.enter(rebuild, Phase.BUILDING, workspace=rebuild.workspace, build_started_at=timezone.now())
    try:
        present = images.present_of([rebuild.bottle])[rebuild.bottle_id]
        image = own.build(rebuild.dockerfile, progress, image=present)
    finally:
        images.enter(rebuild, Phase.BUILDING, build_ended_at=timezone.now())
    images.enter(rebuild, Phase.CANARY, image=image)
    _, tried = lifecycle.plan(slug, command=_command(rebuild), image=Image(image, rebuild.dockerfile))
    canary.check(tried, progress)
    own.verify(image, rebuild.digest)


def _inspect_workspace(
    rebuild: Rebuild, plan: Plan, own: image_builders.Images, progress: Log
) -> dict[str, object]:
    """Record the workspace before the swap. A failure is only reported: the swap does not touch it."""
    try:
        present = own.retain(plan)
        if backends.traits(plan.backend).needs_image and not present:
            return {}
        archive = images.directory_of(rebuild) / f"{rebuild.pk}-changes.tar.gz"
        seen = canary.inspect_workspace(replace(plan, image=present, dockerfile=""), archive)
    except BackendError as error:
        progress(f"The workspace could not be inspected: {error}")
        return {"unknown": without_nul(str(error)[:300])}
    branch, changes = seen.get("branch") or "none", seen.get("changes", "an unknown number of")
    progress(f"The workspace is on branch {branch}, with {changes} files not committed")
    return dict(without_nul_json(seen))


def _swap(rebuild: Rebuild, progress: Log) -> None:
    slug, author = _slug_of(rebuild), rebuild.author
    manifest, plan = lifecycle.plan(slug)
    own = image_builders.images(plan.backend, Path(settings.BOTTLE_HOME), slug)
    command = _command(rebuild)
    images.enter(
        rebuild,
        Phase.SWAPPING,
        made_for=images.source_of(manifest),
        previous_image=own.retain(plan),
        previous_dockerfile=images.in_force(slug, manifest).dockerfile,
        was_running=reconcile.backend_of(rebuild.bottle).life(slug).alive,
    )
    if rebuild.undoes_id is None:
        own.verify(rebuild.image, rebuild.digest)  # again: from here on it shows what runs
    try:
        if rebuild.was_running:
            progress("Stopping the old bottle")
            lifecycle.stop(slug, author=author)
            replacement = Image(rebuild.image, rebuild.dockerfile)
            lifecycle.start(slug, author=author, command=command, progress=progress, image=replacement)
        _go_live(rebuild, progress)
    except Exception as error:
        progress(f"{_reason(error)}\nGoing back to the old image")
        try:
            _go_back(rebuild, command, progress)
        except Exception as second:
            raise NotRebuilt(
                f"{_reason(error)} The old image did not start again either: {_reason(second)}"
            ) from error
        raise


def _go_back(rebuild: Rebuild, command: tuple[str, ...], progress: Progress) -> None:
    """Restore what was in force, however far the swap came. Raises what `lifecycle` raises."""
    bottle = rebuild.bottle
    if not rebuild.was_running:
        images.show_dockerfile(bottle, rebuild.previous_dockerfile)
        return
    _forget_plan(bottle)
    if _runs_the_replacement(rebuild):
        lifecycle.stop(bottle.slug, author=rebuild.author)
    if not reconcile.backend_of(bottle).life(bottle.slug).alive:
        lifecycle.start(bottle.slug, author=rebuild.author, command=command, progress=progress)


def _runs_the_replacement(rebuild: Rebuild) -> bool:
    """Whether the new image runs: each start records its image first. Raises what `lifecycle.plan` raises."""
    slug = rebuild.bottle.slug
    if not reconcile.backend_of(rebuild.bottle).life(slug).alive:
        return False
    _, wanted = lifecycle.plan(slug, image=Image(rebuild.image, rebuild.dockerfile))
    started = Bottle.objects.values_list("image", flat=True).get(pk=rebuild.bottle_id)
    return started == wanted.image[:500]


def _slug_of(rebuild: Rebuild) -> str:
    """The bottle's slug. Raises NotRebuilt if the bottle is gone: its name may have been reused."""
    slug = rebuild.bottle.slug
    if not bottles.living().filter(pk=rebuild.bottle_id).exists():
        raise NotRebuilt(f"The bottle {slug} was deleted.")
    return slug


def _go_live(rebuild: Rebuild, progress: Progress) -> None:
    progress("Live")
    bottle = rebuild.bottle
    if not rebuild.was_running:  # a start caches its own plan
        _forget_plan(bottle)
    with transaction.atomic():
        images.enter(rebuild, Phase.LIVE, ended_at=timezone.now())
        images.show_dockerfile(bottle, rebuild.dockerfile)
        audit.append(
            "image rolled back" if rebuild.undoes_id else "image replaced",
            actor_name=rebuild.author,
            bottle_slug=bottle.slug,
            proposal_id=rebuild.decision.proposal_id if rebuild.decision else None,
            details={"image": rebuild.image, "before": rebuild.previous_image, "digest": rebuild.digest},
        )
        if rebuild.decision is not None:
            apply.mark_applied(
                rebuild.decision, Decision.Applied.LIVE, apply_error="", live_at=rebuild.ended_at
            )


def _forget_plan(bottle: Bottle) -> None:
    """Remove the cached plan: the fast command line must not start a former image."""
    (homes.bottle_directory(bottle) / plan_cache.PLAN_FILE).unlink(missing_ok=True)


def _fail(rebuild: Rebuild, problem: str) -> None:
    """End a failed rebuild. The first line is the reason; the rest, such as a log's end, is in the log."""
    problem = without_nul(problem.partition("\n")[0]).strip().rstrip(".:")[:2000]
    with transaction.atomic():
        images.enter(rebuild, Phase.FAILED, problem=problem, ended_at=timezone.now())
        audit.append(
            "image not replaced",
            actor_name=rebuild.author,
            bottle_slug=rebuild.bottle.slug,
            proposal_id=rebuild.decision.proposal_id if rebuild.decision else None,
            details={"problem": problem, "digest": rebuild.digest},
        )
        if rebuild.decision is not None:
            apply.mark_applied(rebuild.decision, Decision.Applied.FAILED, apply_error=problem)


def _clean_up_after_a_kill(rebuild: Rebuild) -> None:
    """Finish the work of a process that died. Before the swap, only clean up.

    During the swap, a replacement that runs goes live; otherwise the old image is started again.
    """
    bottle = rebuild.bottle
    with suppress(BackendError):
        image_builders.images(bottle.backend, Path(settings.BOTTLE_HOME), bottle.slug).clear()
    scratch_sandbox.clear(bottle.backend, homes.bottle_directory(bottle), bottle.slug)
    problem = INTERRUPTED
    if rebuild.phase == Phase.SWAPPING and rebuild.was_running:
        try:
            reconcile.reconcile_bottle(bottle)
            if _runs_the_replacement(rebuild):
                _go_live(rebuild, log.info)
                _prune(bottle)
                return
            _go_back(rebuild, _command(rebuild), log.info)
        except (SuperviseError, BackendError) as error:
            problem = f"{INTERRUPTED}, and could not be started again: {error}"
    _fail(rebuild, problem)


def _command(rebuild: Rebuild) -> tuple[str, ...]:
    """The command of the last start, if it was not the manifest's."""
    return plan_cache.read_command(homes.bottle_directory(rebuild.bottle))


def _prune(bottle: Bottle) -> None:
    """Remove images that nobody can go back to."""
    living = Rebuild.objects.filter(bottle=bottle, phase=Phase.LIVE).order_by("-ended_at", "-pk")
    rows = living.values_list("image", "previous_image")[:KEPT_IMAGES]
    retained = {name for row in rows for name in row if name}
    with suppress(BackendError):
        image_builders.images(bottle.backend, Path(settings.BOTTLE_HOME), bottle.slug).prune(retained)


def maintain() -> None:
    """Start rebuilds that wait or whose process died. One that never gets started is given up."""
    waiting = Rebuild.objects.filter(phase__in=images.OPEN).select_related(
        "bottle", "decision__proposal__bottle"
    )
    for rebuild in waiting.order_by("pk"):
        # Another home may share the database: it rebuilds its own bottles.
        if not journal.exists(homes.bottle_directory(rebuild.bottle)):
            if rebuild.bottle.state == Bottle.State.DELETED:
                _fail(rebuild, "the bottle was deleted")
            continue
        try:
            with _lock(rebuild.bottle):
                is_left = _is_left(rebuild)
        except BlockingIOError:
            continue
        if is_left:
            images.launch(rebuild)


def _is_left(rebuild: Rebuild) -> bool:
    """Whether a process must be started for it. The caller holds the lock, so no process works on it."""
    rebuild.refresh_from_db(fields=["phase", "attempts", "launched_at"])
    if not rebuild.is_open or _is_behind(rebuild) or images.is_starting(rebuild):
        return False
    if rebuild.attempts < MOST_ATTEMPTS:
        return True
    _fail(rebuild, f"the process that rebuilds it ended {MOST_ATTEMPTS} times before it was done")
    return False


def renew(slug: str, *, author: str) -> Rebuild:
    """Queue a build of the Dockerfile in force, as after its image was removed. Raises NotRebuilt."""
    with transaction.atomic():
        bottle = bottles.get(slug)
        versions.lock(bottle)
        present = images.newest_live(slug)
        if present is None or not present.dockerfile:
            raise NotRebuilt(f"The bottle {slug} runs its manifest's own image. There is nothing to rebuild.")
        return Rebuild.objects.create(
            bottle=bottle, author=author, dockerfile=present.dockerfile, digest=digest_of(present.dockerfile)
        )


def can_roll_back(rebuild: Rebuild | None) -> bool:
    return rebuild is not None and rebuild.phase == Phase.LIVE and rebuild.undoes_id is None


def roll_back(slug: str, *, author: str) -> Rebuild:
    """Queue a return to the image before the present one. Raises NotRebuilt."""
    with transaction.atomic():
        bottle = bottles.get(slug)
        versions.lock(bottle)
        present = images.newest_live(slug)
        if present is None or not can_roll_back(present):
            raise NotRebuilt(f"The bottle {slug} has no rebuilt image to go back from.")
        if Rebuild.objects.filter(bottle=bottle, phase__in=images.OPEN).exists():
            raise NotRebuilt(f"The bottle {slug} is being rebuilt. Wait for that to end.")
        return Rebuild.objects.create(
            bottle=bottle,
            undoes=present,
            author=author,
            dockerfile=present.previous_dockerfile,
            digest=digest_of(present.previous_dockerfile),
            image=present.previous_image,
        )


def again(decision: Decision, *, author: str) -> Rebuild:
    """Queue a failed rebuild again, with the same approved text. Raises NotRebuilt."""
    with transaction.atomic():
        bottle = bottles.get(decision.proposal.bottle.slug)
        versions.lock(bottle)
        decision.refresh_from_db()
        if decision.applied != Decision.Applied.FAILED or decision.proposal.bottle_id != bottle.pk:
            raise NotRebuilt("Only a rebuild that failed can be tried again.")
        apply.reopen(decision, author=author)
        return images.queue(decision)


def check_permission(user: User | AnonymousUser, bottle: Bottle) -> str:
    """Raises NotPermitted for a user who must not decide about the image. Returns the author's name."""
    if not permissions.may_decide_for(user, bottle):
        raise NotPermitted(f"Changing the image of {bottle.slug} needs the right to decide for it.")
    return user.get_username()


def _is_behind(rebuild: Rebuild) -> bool:
    """Whether an older rebuild of the bottle is open: they are done in the order of their approvals."""
    return Rebuild.objects.filter(bottle=rebuild.bottle, phase__in=images.OPEN, pk__lt=rebuild.pk).exists()


def _lock(bottle: Bottle) -> AbstractContextManager[None]:
    """Raises BlockingIOError while another process rebuilds this bottle."""
    return locks.lock(homes.bottle_directory(bottle) / "run" / "rebuild.lock", wait=False)
