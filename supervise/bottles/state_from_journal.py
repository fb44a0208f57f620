"""What became of a bottle since somebody last looked, from its journal and its backend's word. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from botbottle.backends.base import Life
from botbottle.launch import journal
from botbottle.launch.journal import Entry

BY_ITSELF = "bot-bottle"
INTERRUPTED = "the process that was starting it ended before the bottle ran. Start it again."
_SAME_MOMENT = 1.0  # seconds between an entry and the start it tells of
_OUTCOMES = {journal.STARTED, journal.ENDED, journal.FAILED}


@dataclass
class BottleState:
    """What to write down: the state, and one audit row for each thing that happened."""

    state: str
    started_at: float | None = None
    exit_code: int | None = None
    problem: str = ""
    told: int = 0  # how many of the entries are part of it; the others are still going on
    happened: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)  # action, who, details

    def add(self, action: str, who: str, **details: Any) -> None:
        self.happened.append((action, who, details))


def derive_state(before: BottleState, entries: Sequence[Entry], life: Life) -> BottleState:
    """The story that goes on from `before`. Entries whose effect is not to be seen yet are left for later."""
    story = BottleState(before.state, before.started_at, before.exit_code, before.problem)
    running, stopper, is_starting = before.state == "running", BY_ITSELF, False
    for number, entry in enumerate(entries):
        later = entries[number + 1 :]
        if _is_going_on(entry, later, life):
            is_starting = entry.what == journal.STARTING
            break
        story.told += 1
        match entry.what:
            case journal.STARTING if _came_to_run(entry, later, life):
                story.add("bottle started", entry.who)
                story.started_at, story.exit_code, story.problem = entry.at, None, ""
                running, stopper = True, BY_ITSELF
            case journal.STARTING if not _outcome(entry, later):
                story.add("bottle not started", entry.who, problem=INTERRUPTED)
                story.problem = INTERRUPTED
            case journal.FAILED:
                story.add("bottle not started", entry.who, problem=entry.text)
                story.problem = entry.text
            case journal.ENDED:
                story.exit_code = entry.exit_code
                if running:
                    story.add("bottle stopped", stopper, exit_code=entry.exit_code)
                running = False
            case journal.STOPPING:
                stopper = entry.who
            case journal.USED:
                story.add("bottle used", entry.who, program=entry.text)
    _agree_with_the_system(story, life, running=running, stopper=stopper, is_starting=is_starting)
    return story


def _agree_with_the_system(
    story: BottleState, life: Life, *, running: bool, stopper: str, is_starting: bool
) -> None:
    if life.alive:
        if not running:
            story.add("bottle started", BY_ITSELF, found="running")
        story.state, story.exit_code, story.problem = "running", None, ""
        story.started_at = life.started_at or story.started_at
        return
    if running:
        story.exit_code = life.exit_code
        story.add("bottle stopped", stopper, exit_code=life.exit_code)
    if is_starting:
        story.state = "starting"
    elif story.state != "created" or story.happened:
        story.state = "stopped"


def _is_going_on(entry: Entry, later: Sequence[Entry], life: Life) -> bool:
    if entry.what == journal.STARTING:
        return not life.alive and not _outcome(entry, later) and entry.writer_lives
    if entry.what == journal.STOPPING:
        return life.alive and entry.writer_lives and not any(e.what == journal.STARTING for e in later)
    return False


def _outcome(entry: Entry, later: Sequence[Entry]) -> str:
    """How the start ended that this entry began; empty while nobody has said."""
    said = (e.what for e in later if (e.pid, e.begun) == (entry.pid, entry.begun) and e.what in _OUTCOMES)
    return next(said, "")


def _came_to_run(entry: Entry, later: Sequence[Entry], life: Life) -> bool:
    outcome = _outcome(entry, later)
    if outcome:
        return outcome != journal.FAILED
    if any(e.what == journal.STARTING for e in later):
        return False  # nobody can say any more, and the later one is the one that counts
    return life.alive or (life.started_at or 0.0) >= entry.at - _SAME_MOMENT
