"""Agents whose calls wait at one server, and the operator who decides them one by one or all at once."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from subjects import Subject, Verb
from wire import Answer, Connection, Lost

FILING_SECONDS = 120.0
LOST_SECONDS = 60.0  # an answer that takes longer counts as lost
BATCH = 100
PAUSE_SECONDS = 0.1  # at most; two polling intervals, so that decisions fall anywhere in one


@dataclass(frozen=True)
class Sample:
    """One decided call. `answered` is None when it was lost; `right` says that the answer was its own."""

    verb: Verb
    started: float  # the operator's request begins
    decided: float  # just before others can see the decision
    answered: float | None
    right: bool


@dataclass
class _Call:
    connection: Connection
    answer: asyncio.Future[Answer]


class Crowd:
    def __init__(self, subject: Subject, label: str) -> None:
        self._subject = subject
        self._label = label
        self._number = 0
        self._calls: dict[str, _Call] = {}  # by the host asked for, which is unique
        self._ids: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._calls)

    async def grow(self, count: int) -> None:
        """Add waiting calls, each on its own connection; returns when the operator could see all of them."""
        while count > 0:
            batch = min(BATCH, count)
            await asyncio.gather(*(self._ask() for _ in range(batch)))
            await self._until_filed()
            count -= batch
        self._ids = self._subject.pending()

    async def decide_steadily(self, count: int) -> list[Sample]:
        """Decide random calls at random moments, so often by each verb; a new call takes each one's place."""
        operator = await Connection.open(self._subject.operator_port)
        samples = []
        for verb in [*Verb] * count:
            host = random.choice(list(self._calls))
            samples += await self._decide([host], operator, verb)
            await self.grow(1)
        operator.close()
        return samples

    async def decide_all(self, operators: int = 8) -> list[Sample]:
        """Decide every call in random order, as fast as some operators can."""
        hosts = list(self._calls)
        random.shuffle(hosts)
        connections = [await Connection.open(self._subject.operator_port) for _ in range(operators)]
        shares = [
            self._decide(hosts[number::operators], connection, Verb.APPROVE, pause=0.0)
            for number, connection in enumerate(connections)
        ]
        samples = [sample for share in await asyncio.gather(*shares) for sample in share]
        for connection in connections:
            connection.close()
        return samples

    async def _ask(self) -> None:
        self._number += 1
        host = f"{self._label}-{self._number}.example.com"
        connection = await Connection.open(self._subject.agent_port)
        self._calls[host] = _Call(connection, connection.send(self._subject.ask(host)))

    async def _until_filed(self) -> None:
        deadline = time.monotonic() + FILING_SECONDS
        while self._subject.pending_count() < len(self._calls):
            gone = [host for host, call in self._calls.items() if call.answer.done()]
            if gone or time.monotonic() > deadline:
                answer = self._calls[gone[0]].answer if gone else None
                raise SystemExit(f"{self._subject.name} did not keep a call waiting: {_described(answer)}")
            await asyncio.sleep(0.01)

    async def _decide(
        self, hosts: Iterable[str], operator: Connection, verb: Verb, pause: float = PAUSE_SECONDS
    ) -> list[Sample]:
        started: dict[str, float] = {}
        replies: dict[str, Any] = {}
        outcomes = {}
        for host in hosts:
            proposal_id, call = self._ids[host], self._calls.pop(host)
            approve = await self._subject.look(operator, proposal_id, verb)
            await asyncio.sleep(random.uniform(0, pause))
            started[proposal_id] = time.time()
            replied = operator.send(approve)
            outcomes[proposal_id] = await _outcome(call, proposal_id, verb)
            replies[proposal_id] = (await replied).json()
        decided = self._subject.decided_at(replies)
        return [
            Sample(verb, started[key], decided[key], answered, right)
            for key, (answered, right) in outcomes.items()
        ]


async def _outcome(call: _Call, proposal_id: str, verb: Verb) -> tuple[float | None, bool]:
    """When the whole answer was read, and whether it is this call's own."""
    try:
        async with asyncio.timeout(LOST_SECONDS):
            answer = await call.answer
    except (TimeoutError, Lost):
        return None, False
    finally:
        call.connection.close()
    told = answer.json()["result"]["structuredContent"]
    mine = UUID(told["proposal_id"]) == UUID(proposal_id)
    return answer.read_at, mine and told["status"] == verb.status


def _described(answer: asyncio.Future[Answer] | None) -> str:
    if answer is None:
        return "filing took too long"
    return str(answer.exception() or answer.result().body[:500])
