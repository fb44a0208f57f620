"""What happens without anybody asking."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from botbottle.models import Bottle
from supervise import caretaker
from supervise.models import Decision, Proposal
from tests.asking import ask


@pytest.mark.django_db
def test_an_old_proposal_expires_and_a_young_one_stays(agent_a: Bottle, settings: Any) -> None:
    settings.SUPERVISE_PROPOSAL_TTL_SECONDS = 3600
    old, young = ask(agent_a), ask(agent_a, "young.example.com")
    Proposal.objects.filter(pk=old.pk).update(created_at=timezone.now() - timedelta(seconds=3601))
    assert caretaker.expire_old() == 1
    assert Decision.objects.get().proposal == old
    assert Decision.objects.get().notes == "Nobody decided in time."
    assert Proposal.objects.get(pk=young.pk).is_pending
    assert caretaker.expire_old() == 0


@pytest.mark.django_db(transaction=True)
async def test_it_goes_on_after_a_round_that_failed(
    agent_a: Bottle, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    rounds: list[int] = []
    third = asyncio.Event()
    loop = asyncio.get_running_loop()

    def tend() -> None:
        rounds.append(1)
        if len(rounds) == 1:
            raise RuntimeError("unforeseen")
        if len(rounds) == 3:
            loop.call_soon_threadsafe(third.set)

    monkeypatch.setattr(caretaker, "tend", tend)
    monkeypatch.setattr(caretaker, "ROUND_SECONDS", 0.001)
    worker = caretaker.Caretaker()
    worker.start()
    async with asyncio.timeout(10):
        await third.wait()
    await worker.stop()
    assert "A caretaking round failed" in caplog.text


async def test_it_may_be_stopped_before_it_was_started() -> None:
    await caretaker.Caretaker().stop()
