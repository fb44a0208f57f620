"""Work that may be long, done on the event loop a little at a time, the bottles in turn.

Trust boundary: the sender decides how much work a message makes. Without turns, the bottle that makes the
most would be the only one that is served.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from time import perf_counter

from egress.dlp.scanner import Steps

STEP_SECONDS = 0.002  # for one message
TURN_SECONDS = 0.004  # for all of them, before the loop looks at its sockets again

Step = Callable[[], bool]  # works for a moment and says whether there is more to do
Begin = Callable[[Step], None]


class FairScheduler:
    def __init__(self) -> None:
        self._waiting: dict[object, deque[Step]] = {}  # by owner, the next one first
        self._spent = 0.0
        self._is_scheduled = False

    def begin(self, whose: object, step: Step) -> None:
        """Do the first step at once if nobody waits; usually there is no second."""
        if self._waiting or self._spent > TURN_SECONDS or self._do(step):
            self._waiting.setdefault(whose, deque()).append(step)
        self._schedule()

    def _do(self, step: Step) -> bool:
        started = perf_counter()
        more = step()
        self._spent += perf_counter() - started
        return more

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._is_scheduled = False
        self._spent = 0.0
        while self._waiting and self._spent <= TURN_SECONDS:
            whose, steps = next(iter(self._waiting.items()))
            step = steps.popleft()
            if self._do(step):
                steps.append(step)
            del self._waiting[whose]
            if steps:
                self._waiting[whose] = steps
        if self._spent:
            self._schedule()


def at_once(step: Step) -> None:
    while step():
        pass


def advance(work: Iterator[object]) -> bool:
    """Continue for a moment; True when there is more to do. Raises what the work raises."""
    until = perf_counter() + STEP_SECONDS
    return any(perf_counter() > until for _ in work)


async def result(steps: Steps, begin: Begin) -> bytes:
    """Do the work in turns and return its result. Raises what the work raises."""
    outcome: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def work() -> Iterator[None]:
        found = yield from steps
        if not outcome.done():
            outcome.set_result(found)

    todo = work()

    def step() -> bool:
        try:
            return not outcome.done() and advance(todo)
        except Exception as error:
            outcome.set_exception(error)
            return False

    begin(step)
    return await outcome


def unchanged(payload: bytes) -> Steps:
    """No work at all."""
    yield from ()
    return payload
