"""What a scratch sandbox is given of its bottle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from botbottle.core.plan_types import WORKSPACE_INSIDE, Mount, Plan, Variable
from botbottle.launch import canary
from botbottle.launch.scratch_sandbox import Result

VARIABLES = {"KEY": Variable(from_env="HOST_KEY"), "PLAIN": Variable("plain")}


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Plan]:
    """The plans of which sandboxes were made. What is asked in them goes well."""
    plans: list[Plan] = []

    @contextmanager
    def prepared(plan: Plan) -> Iterator[SimpleNamespace]:
        plans.append(plan)
        yield SimpleNamespace(scratch=tmp_path, run=lambda *_words, **_options: Result(0, "{}"))

    monkeypatch.setattr(canary, "scratch_sandbox", prepared)
    return plans


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    workspace = Mount(str(tmp_path), WORKSPACE_INSIDE, writable=True)
    return Plan("demo", "local", str(tmp_path), variables=VARIABLES, mounts=(workspace,))


def test_neither_kind_gets_a_secret(
    given: list[Plan], plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOST_KEY", "shapeless words")
    canary.check(plan, lambda _line: None)
    canary.inspect_workspace(plan, tmp_path / "archive")
    assert [dict(each.variables) for each in given] == [{"PLAIN": Variable("plain")}] * 2


def test_a_secret_that_the_host_has_lost_is_told_before_the_swap(given: list[Plan], plan: Plan) -> None:
    with pytest.raises(canary.CanaryFailed, match="HOST_KEY"):
        canary.check(plan, lambda _line: None)


def test_a_canary_that_says_nothing_is_told_by_its_code(
    monkeypatch: pytest.MonkeyPatch, given: list[Plan], plan: Plan, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOST_KEY", "shapeless words")

    @contextmanager
    def silent(plan: Plan) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(scratch=tmp_path, run=lambda *_words, **_options: Result(3, "\n"))

    monkeypatch.setattr(canary, "scratch_sandbox", silent)
    with pytest.raises(canary.CanaryFailed, match=r"failed: it ended with code 3\.$"):
        canary.check(plan, lambda _line: None)
