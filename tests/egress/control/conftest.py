"""A home with a stand-in for the egress process, which the control plane believes to be the real one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from botbottle.models import Bottle
from supervise.models import Decision
from supervise.proposals import decisions
from tests.supervise.console.conftest import browser_of
from tests.support.fake_proxy import StandIn
from tests.support.proposals import ask, seen


@pytest.fixture
def home(settings: Any) -> Iterator[Path]:
    with TemporaryDirectory(prefix="bottle-") as directory:  # short: the path of a socket has a limit
        settings.BOTTLE_HOME = Path(directory)
        yield Path(directory)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """One number that the test moves on."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def olivia(operator: User) -> Client:
    return browser_of(operator)


@pytest.fixture
def root(db: None) -> Client:
    return browser_of(User.objects.create_superuser("root", password="correct-horse-battery"))


@pytest.fixture
def plane(home: Path, settings: Any) -> Iterator[StandIn]:
    settings.EGRESS_PROXY = True
    stand_in = StandIn(home)
    stand_in.start()
    yield stand_in
    stand_in.stop()


@pytest.fixture
def approve(operator: User) -> Callable[..., Decision]:
    def look_and_approve(bottle: Bottle, host: str = "api.example.com") -> Decision:
        proposal = ask(bottle, host)
        decision = decisions.approve(proposal.pk, actor=operator, seen_digest=seen(proposal))
        return Decision.objects.get(pk=decision.pk)

    return look_and_approve
