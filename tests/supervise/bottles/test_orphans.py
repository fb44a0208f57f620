"""What a backend has of nobody's is removed, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from botbottle.models import Bottle
from supervise.bottles import reconcile
from supervise.models.rebuilds import Rebuild

pytestmark = pytest.mark.django_db


class Engine:
    """Has something of agent-a, whose backend is another one."""

    def __init__(self) -> None:
        self.removed: list[str] = []

    def orphans(self, known: Iterable[str]) -> list[str]:
        return [] if "agent-a" in known else ["agent-a"]

    def remove(self, slug: str) -> None:
        self.removed.append(slug)


def test_what_builds_a_local_bottles_new_root_filesystem_is_left_alone(
    agent_a: Bottle, agent_b: Bottle, monkeypatch: pytest.MonkeyPatch
) -> None:
    Bottle.objects.filter(pk=agent_a.pk).update(backend="local")
    Bottle.objects.filter(pk=agent_b.pk).update(backend="docker")
    engine = Engine()

    def backend(_name: str, _home: Path) -> Engine:
        return engine

    monkeypatch.setattr(reconcile.backends, "get", backend)
    made = Rebuild.objects.create(bottle=agent_a, author="tests", phase=Rebuild.Phase.BUILDING)
    reconcile._remove_orphans()
    assert engine.removed == []
    Rebuild.objects.filter(pk=made.pk).update(phase=Rebuild.Phase.LIVE)
    reconcile._remove_orphans()
    assert engine.removed == ["agent-a"]
