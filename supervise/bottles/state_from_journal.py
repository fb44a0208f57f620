"""Derives a bottle's state and events since the last check from its journal and its backend. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from botbottle.backends.base import Life
from botbottle.launch import journal
from botbottle.launch.journal import Entry

BY_ITSELF = "bot-bottle"
INTERRUPTED = "the process that was starting it ended before the bottle ran. Start it again."
_SAME_MOMENT = 1.0  # seconds between an entry and the start that it describes
_OUTCOMES = {journal.STARTED, journal.ENDED, journal.FAILED}


@dataclass
class BottleState:
    """What to save: the state, and one audit row for each event."""

    state: str
    started_at: float | None = None
    exit_code: int | None = None
    problem: str = ""
    consumed: int = 0  # how many entries are part of it; the others are still in progress
    happened: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)  # action, who, details

    def add(self, action: str, who: str, **details: Any) -> None:
        self.happened.append((action, who, details))


def derive_state(before: BottleState, entries: Sequence[Entry], life: Life) -> BottleState:
    """The state that follows from `before`. Entries without a visible effect so far are left for later."""
    derived = BottleState(before.state, before.started_at, before.exit_code, before.problem)
    running, stopper, is_starting = before.state == "running", BY_ITSELF, False
    for number, entry in enumerate(entries):
        later = entries[number + 1 :]
        if _is_in_progress(entry, later, life):
            is_starting = entry.what == journal.STARTING
            break
        derived.consumed += 1
        match entry.what:
            case journal.STARTING if _came_to_run(entry, later, life):
                derived.add("bottle started", entry.who)
                derived.started_at, derived.exit_code, derived.problem = entry.at, None, ""
                running, stopper = True, BY_ITSELF
            case journal.STARTING if not _outcome(entry, later):
                derived.add("bottle not started", entry.who, problem=INTERRUPTED)
                derived.problem = INTERRUPTED
            case journal.FAILED:
                derived.add("bottle not started", entry.who, problem=entry.text)
                derived.problem = entry.text
            case journal.ENDED:
                derived.exit_code = entry.exit_code
                if running:
                    derived.add("bottle stopped", stopper, exit_code=entry.exit_code)
                running = False
            case journal.STOPPING:
                stopper = entry.who
            case journal.USED:
                derived.add("bottle used", entry.who, program=entry.text)
    _apply_life(derived, life, running=running, stopper=stopper, is_starting=is_starting)
    return derived


def _apply_life(derived: BottleState, life: Life, *, running: bool, stopper: str, is_starting: bool) -> None:
    if life.alive:
        if not running:
            derived.add("bottle started", BY_ITSELF, found="running")
        derived.state, derived.exit_code, derived.problem = "running", None, ""
        derived.started_at = life.started_at or derived.started_at
        return
    if running:
        derived.exit_code = life.exit_code
        derived.add("bottle stopped", stopper, exit_code=life.exit_code)
    if is_starting:
        derived.state = "starting"
    elif derived.state != "created" or derived.happened:
        derived.state = "stopped"


def _is_in_progress(entry: Entry, later: Sequence[Entry], life: Life) -> bool:
    if entry.what == journal.STARTING:
        return not life.alive and not _outcome(entry, later) and entry.writer_lives
    if entry.what == journal.STOPPING:
        return life.alive and entry.writer_lives and not any(e.what == journal.STARTING for e in later)
    return False


def _outcome(entry: Entry, later: Sequence[Entry]) -> str:
    """How the start ended that this entry began; empty while that is unknown."""
    outcomes = (e.what for e in later if (e.pid, e.begun) == (entry.pid, entry.begun) and e.what in _OUTCOMES)
    return next(outcomes, "")


def _came_to_run(entry: Entry, later: Sequence[Entry], life: Life) -> bool:
    outcome = _outcome(entry, later)
    if outcome:
        return outcome != journal.FAILED
    if any(e.what == journal.STARTING for e in later):
        return False  # unknown by now, and only the later start counts
    return life.alive or (life.started_at or 0.0) >= entry.at - _SAME_MOMENT
