"""Makes bottles' states in the database true: after every action, every few seconds, and after any crash.

The only writer of a living bottle's state. Whether it lives is what the backend reports, never what the
database contains.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from django.conf import settings
from django.db import transaction

from botbottle import backends
from botbottle.backends.base import Backend, Life
from botbottle.core import locks
from botbottle.core.plan_types import BackendError
from botbottle.core.sanitize import without_nul, without_nul_json
from botbottle.launch import journal
from botbottle.launch.journal import Reading
from botbottle.models import Bottle
from egress.tables import homes
from supervise import audit, events
from supervise.bottles.state_from_journal import BY_ITSELF, BottleState, derive_state
from supervise.models.rebuilds import Rebuild

log = logging.getLogger(__name__)
LOCK = ".reconcile.lock"
_ATTEMPTS = 3


def backend_of(bottle: Bottle) -> Backend:
    """The bottle's backend. Raises BackendError."""
    return backends.get(bottle.backend, Path(settings.BOTTLE_HOME))


def reconcile() -> bool:
    """Reconcile all bottles of this home and remove orphaned sandboxes.

    Returns False if another process is already reconciling. A backend that does not answer does not stop the
    others.
    """
    try:
        with locks.lock(Path(settings.BOTTLE_HOME) / "run" / "reconcile.lock", wait=False):
            reconcile_all()
            _remove_orphans()
            return True
    except BlockingIOError:
        return False


def reconcile_all() -> None:
    for bottle in Bottle.objects.exclude(state=Bottle.State.DELETED).defer("dockerfile", "manifest"):
        # Another home may share the database: it reconciles its own bottles.
        if not journal.exists(homes.bottle_directory(bottle)):
            continue
        try:
            reconcile_bottle(bottle)
        except Exception:
            log.exception("The state of bottle %s could not be reconciled.", bottle.slug)


def reconcile_bottle(bottle: Bottle) -> Bottle:
    """Return the bottle with its real state, saved with one audit row per event.

    If its backend does not answer, only `backend_problem` changes.
    """
    directory = homes.bottle_directory(bottle)
    with locks.lock(directory / LOCK):
        bottle.refresh_from_db()
        if bottle.state == Bottle.State.DELETED:
            return bottle
        try:
            backend_of(bottle).tidy(bottle.slug)
            reading, life = _observe(bottle, directory)
        except BackendError as error:
            _record_problem(bottle, str(error))
            return bottle
        _record_problem(bottle, "")
        _save(bottle, reading, life)
    return bottle


def _observe(bottle: Bottle, directory: Path) -> tuple[Reading, Life]:
    """Read journal and system at one moment, as far as possible: repeat if the journal changed meanwhile."""
    backend = backend_of(bottle)
    reading, life = journal.read(directory, bottle.journal_read), backend.life(bottle.slug)
    for _ in range(_ATTEMPTS):
        again = journal.read(directory, bottle.journal_read)
        if again == reading:
            break
        reading, life = again, backend.life(bottle.slug)
    return reading, life


def _save(bottle: Bottle, reading: Reading, life: Life) -> None:
    before = BottleState(
        bottle.state,
        bottle.started_at.timestamp() if bottle.started_at else None,
        bottle.exit_code,
        bottle.problem,
    )
    derived = derive_state(before, [entry for entry, _ in reading.entries], life)
    position = reading.entries[derived.consumed - 1][1] if derived.consumed else reading.start
    if replace(derived, consumed=0) == before and position == bottle.journal_read:
        return  # the usual case
    columns = {
        "state": derived.state,
        "started_at": datetime.fromtimestamp(derived.started_at, UTC) if derived.started_at else None,
        "exit_code": derived.exit_code,
        "problem": without_nul(derived.problem),  # may contain a build's last output
        "journal_read": position,
    }
    with transaction.atomic():
        # The filter: a bottle that was deleted meanwhile stays deleted.
        living = Bottle.objects.filter(pk=bottle.pk).exclude(state=Bottle.State.DELETED)
        if living.update(**columns) != 1:
            return
        for action, who, details in derived.happened:
            facts = {"backend": bottle.backend, **without_nul_json(details)}
            audit.append(action, actor_name=who, bottle_slug=bottle.slug, details=facts)
        events.announce_bottle(bottle, derived.state)
    for name, value in columns.items():
        setattr(bottle, name, value)


def _record_problem(bottle: Bottle, problem: str) -> None:
    problem = without_nul(problem)
    if bottle.backend_problem != problem:
        Bottle.objects.filter(pk=bottle.pk).update(backend_problem=problem)
        bottle.backend_problem = problem
        events.announce_bottle(bottle, bottle.state)


def _remove_orphans() -> None:
    living = Bottle.objects.exclude(state=Bottle.State.DELETED)
    for name in Bottle.objects.order_by().values_list("backend", flat=True).distinct():
        known = list(living.filter(backend=name).values_list("slug", flat=True))
        try:
            backend = backends.get(name, Path(settings.BOTTLE_HOME))
            for slug in backend.orphans(known):
                # Asked again: its record may be newer than our list.
                if not living.filter(backend=name, slug=slug).exists() and not _is_being_rebuilt(slug):
                    backend.remove(slug)
                    _record_orphan(name, slug)
        except BackendError as error:
            log.debug("backend %s: orphans cannot be found: %s", name, error)
        except Exception:
            log.exception("Orphans of the backend %s could not be found.", name)


def _is_being_rebuilt(slug: str) -> bool:
    """Whether a rebuild is open: the Docker engine then has containers of it, also for a local bottle."""
    over = (Rebuild.Phase.LIVE, Rebuild.Phase.FAILED)
    return Rebuild.objects.filter(bottle__slug=slug).exclude(phase__in=over).exists()


def _record_orphan(backend: str, slug: str) -> None:
    with transaction.atomic():
        audit.append("orphan removed", actor_name=BY_ITSELF, bottle_slug=slug, details={"backend": backend})
