"""Agents whose calls wait at one server, and the operators who decide them one by one or all at once."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from bench.subjects import Moments, Subject, Verb
from bench.wire import Answer, Connection, Lost

FILING_SECONDS = 30.0  # for a batch; what is not filed by then is lost, and no more are sent
LOST_SECONDS = 60.0  # an answer that takes longer is lost
BATCH = 100
PAUSE_SECONDS = 0.1  # at most: two polling intervals, so that decisions fall anywhere in one
OPERATORS = 8


@dataclass(frozen=True)
class Sample:
    """One decided call. `answered` is None when it was lost; `right` says that the answer was its own."""

    verb: Verb
    started: float  # the operator's request begins
    moments: Moments
    answered: float | None
    right: bool


@dataclass(frozen=True)
class _Call:
    connection: Connection
    answer: asyncio.Future[Answer]


@dataclass(frozen=True)
class _Decided:
    verb: Verb
    proposal_id: str
    call: _Call
    started: float
    reply: Any  # what the operator got back


class Crowd:
    def __init__(self, subject: Subject, label: str) -> None:
        self._subject = subject
        self._label = label
        self._number = 0
        self._calls: dict[str, _Call] = {}  # by the host asked for, which is unique
        self._ids: dict[str, str] = {}
        self.lost_before_deciding = 0

    async def grow(self, count: int) -> None:
        """Add waiting calls, each on its own connection; returns when the operator could see all of them."""
        filing = True
        while count > 0 and filing:
            batch = min(BATCH, count)
            await asyncio.gather(*(self._ask() for _ in range(batch)))
            filing = await self._until_filed()
            count -= batch
        self.lost_before_deciding += count
        self._ids = self._subject.pending()
        for host in [host for host in self._calls if host not in self._ids]:
            self._calls.pop(host).connection.close()
            self.lost_before_deciding += 1

    async def decide_steadily(self, count: int) -> list[Sample]:
        """Decide random calls at random moments, so often by each verb; a new call takes each one's place."""
        operator = await Connection.open(self._subject.operator_port)
        samples = []
        for verb in [*Verb] * count:
            host = random.choice(list(self._calls))
            samples += await self._samples([await self._decide(host, operator, verb, PAUSE_SECONDS)])
            await self.grow(1)
        operator.close()
        return samples

    async def decide_all(self) -> list[Sample]:
        """Decide every call in random order and by both verbs, as fast as some operators can."""
        hosts = list(self._calls)
        random.shuffle(hosts)
        shares = await asyncio.gather(*(self._decide_share(hosts[n::OPERATORS]) for n in range(OPERATORS)))
        return await self._samples([decided for share in shares for decided in share])

    def leave(self) -> None:
        """Whoever still waits hangs up."""
        for call in self._calls.values():
            call.connection.close()

    async def _ask(self) -> None:
        self._number += 1
        host = f"{self._label}-{self._number}.example.com"
        connection = await Connection.open(self._subject.agent_port)
        self._calls[host] = _Call(connection, connection.send(self._subject.ask(host)))

    async def _until_filed(self) -> bool:
        deadline = time.monotonic() + FILING_SECONDS
        while time.monotonic() < deadline:
            if self._subject.pending_count() >= len(self._calls):
                return True
            await asyncio.sleep(0.01)
        return False

    async def _decide_share(self, hosts: Iterable[str]) -> list[_Decided]:
        operator = await Connection.open(self._subject.operator_port)
        verbs = [*Verb]
        decided = [
            await self._decide(host, operator, verbs[number % len(verbs)])
            for number, host in enumerate(hosts)
        ]
        operator.close()
        return decided

    async def _decide(self, host: str, operator: Connection, verb: Verb, pause: float = 0.0) -> _Decided:
        proposal_id, call = self._ids[host], self._calls.pop(host)
        decide = await self._subject.look(operator, proposal_id, verb)
        await asyncio.sleep(random.uniform(0, pause))
        started = time.time()
        reply = await operator.send(decide)
        return _Decided(verb, proposal_id, call, started, reply.json())

    async def _samples(self, decided: Sequence[_Decided]) -> list[Sample]:
        outcomes = await asyncio.gather(*map(_outcome, decided))
        moments = self._subject.moments({one.proposal_id: one.reply for one in decided})
        return [
            Sample(one.verb, one.started, moments[one.proposal_id], answered, right)
            for one, (answered, right) in zip(decided, outcomes, strict=True)
        ]


async def _outcome(decided: _Decided) -> tuple[float | None, bool]:
    """When the whole answer was read, and whether it is this call's own."""
    try:
        async with asyncio.timeout(LOST_SECONDS):
            answer = await decided.call.answer
    except (TimeoutError, Lost):
        return None, False
    finally:
        decided.call.connection.close()
    told = answer.json()["result"]["structuredContent"]
    mine = UUID(told["proposal_id"]) == UUID(decided.proposal_id)
    return answer.read_at, mine and told["status"] == decided.verb.status
