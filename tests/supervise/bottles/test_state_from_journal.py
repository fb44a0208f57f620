"""What is told of a bottle: each thing once, by whom, and the state that is true."""

from __future__ import annotations

import os
from typing import Any

import pytest

from botbottle.backends.base import Life
from botbottle.launch import journal
from botbottle.launch.journal import Entry
from supervise.bottles.state_from_journal import INTERRUPTED, BottleState, derive_state

HERE, GONE = journal._begun(os.getpid()), "1"
ALIVE, DEAD = Life(alive=True, started_at=100.0), Life(alive=False)


def entry(what: str, who: str = "olivia", *, begun: str = GONE, at: float = 100.0, **more: Any) -> Entry:
    return Entry(what, who, at, os.getpid(), begun, **more)


STARTING, STARTED, STOPPING = entry("starting"), entry("started"), entry("stopping", "otto")
ENDED, FAILED = entry("ended", exit_code=42), entry("failed", text="no image")
STARTED_BY_HER, STOPPED = ("bottle started", "olivia"), ("bottle stopped", "bot-bottle")
STOPPED_BY_HIM, NOT_STARTED = ("bottle stopped", "otto"), ("bottle not started", "olivia")
FOUND = ("bottle started", "bot-bottle")

CASES = {
    "nothing happened": ("created", [], DEAD, "created", []),
    "it goes on": ("running", [], ALIVE, "running", []),
    "started": ("created", [STARTING], ALIVE, "running", [STARTED_BY_HER]),
    "started in the background": ("stopped", [STARTING, STARTED], ALIVE, "running", [STARTED_BY_HER]),
    "started and over": ("created", [STARTING, STARTED], DEAD, "stopped", [STARTED_BY_HER, STOPPED]),
    "ran": ("stopped", [STARTING, ENDED], DEAD, "stopped", [STARTED_BY_HER, STOPPED]),
    "ran twice": (
        "stopped",
        [STARTING, ENDED, STARTING, ENDED],
        DEAD,
        "stopped",
        [STARTED_BY_HER, STOPPED, STARTED_BY_HER, STOPPED],
    ),
    "ran and runs again": (
        "running",
        [ENDED, STARTING, STARTED],
        ALIVE,
        "running",
        [STOPPED, STARTED_BY_HER],
    ),
    "ended after it was found dead": ("stopped", [ENDED], DEAD, "stopped", []),
    "stopped": ("running", [STOPPING], DEAD, "stopped", [STOPPED_BY_HIM]),
    "stopped in the foreground": ("running", [STOPPING, ENDED], DEAD, "stopped", [STOPPED_BY_HIM]),
    "a stop that did not stop it": ("running", [STOPPING], ALIVE, "running", []),
    "stopped, then started": (
        "running",
        [STOPPING, ENDED, STARTING, STARTED],
        ALIVE,
        "running",
        [STOPPED_BY_HIM, STARTED_BY_HER],
    ),
    "killed": ("running", [], DEAD, "stopped", [STOPPED]),
    "started behind our back": ("stopped", [], ALIVE, "running", [FOUND]),
    "not started": ("created", [STARTING, FAILED], DEAD, "stopped", [NOT_STARTED]),
    "not even tried": ("created", [FAILED], DEAD, "stopped", [NOT_STARTED]),
    "not started twice over": ("running", [FAILED], ALIVE, "running", [NOT_STARTED]),
    "interrupted": ("starting", [STARTING], DEAD, "stopped", [NOT_STARTED]),
    "interrupted, then started": (
        "starting",
        [STARTING, entry("starting", "otto", begun="2"), entry("started", "otto", begun="2")],
        ALIVE,
        "running",
        [NOT_STARTED, ("bottle started", "otto")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_each_thing_is_told_once_and_the_state_is_true(case: Any) -> None:
    before, entries, life, after, happened = case
    story = derive_state(BottleState(before), entries, life)
    assert story.state == after
    assert [(action, who) for action, who, _ in story.happened] == happened
    assert story.consumed == len(entries)
    again = derive_state(BottleState(story.state, story.started_at, story.exit_code, story.problem), [], life)
    assert (again.state, again.happened) == (story.state, []), "a second look adds nothing"


@pytest.mark.parametrize(
    ("before", "entries", "life", "after", "told"),
    [
        ("created", [entry("starting", begun=HERE)], DEAD, "starting", 0),
        ("starting", [entry("starting", begun=HERE), entry("used")], DEAD, "starting", 0),
        ("stopped", [STARTING, ENDED, entry("starting", begun=HERE)], DEAD, "starting", 2),
        ("running", [entry("stopping", begun=HERE)], ALIVE, "running", 0),
    ],
)
def test_what_is_going_on_is_told_when_it_is_over(
    before: str, entries: list[Entry], life: Life, after: str, told: int
) -> None:
    story = derive_state(BottleState(before), entries, life)
    assert (story.state, story.consumed) == (after, told)


def test_exit_codes_and_problems_are_kept_until_the_next_start() -> None:
    assert derive_state(BottleState("running"), [ENDED], DEAD).exit_code == 42
    assert derive_state(BottleState("running"), [], Life(alive=False, exit_code=137)).exit_code == 137
    failed = derive_state(BottleState("stopped"), [STARTING, FAILED], DEAD)
    assert failed.problem == "no image"
    assert derive_state(BottleState("starting"), [STARTING], DEAD).problem == INTERRUPTED
    started = derive_state(
        BottleState("stopped", exit_code=42, problem="no image"), [STARTING, STARTED], ALIVE
    )
    assert (started.exit_code, started.problem, started.started_at) == (None, "", 100.0)


def test_a_bottle_that_runs_has_no_problem_though_a_second_start_failed() -> None:
    assert derive_state(BottleState("running"), [STARTING, FAILED], ALIVE).problem == ""


def test_a_start_that_only_its_sandbox_remembers_did_happen() -> None:
    ran = Life(alive=False, started_at=100.2, exit_code=0)
    story = derive_state(BottleState("created"), [STARTING], ran)
    assert [action for action, _, _ in story.happened] == ["bottle started", "bottle stopped"]


def test_what_was_executed_is_told_by_its_name_alone() -> None:
    story = derive_state(BottleState("running"), [entry("used", text="bash")], ALIVE)
    assert story.happened == [("bottle used", "olivia", {"program": "bash"})]
