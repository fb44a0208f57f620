"""The waiter hub: one channel-layer subscription per process wakes the calls that wait in it.

No thread waits. A waiter that a message woke reads the database; the message itself is never believed. The
outcome of a decision that this process has committed itself is passed to its waiters directly.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from contextvars import Context
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async
from channels.layers import get_channel_layer
from django.db import close_old_connections, connection

from botbottle.core.tasks import cancel_and_wait
from supervise import audit, events
from supervise.models import AuditEvent
from supervise.proposals.outcomes import Outcome

log = logging.getLogger(__name__)
SUBSCRIBE_PATIENCE = 2.0  # seconds a call waits for the subscription before it relies on the sweeper alone
SWEEP_INTERVAL = 1.0
WATCH_INTERVAL = 0.05


class Waiter:
    """One waiting call."""

    def __init__(self) -> None:
        self._woken = asyncio.Event()
        self.outcome: Outcome | None = None  # set when this process decided the proposal
        self.last_read: Outcome | None = None  # what the last read found, while the call sleeps
        self.answer_at_once: Callable[[Outcome], None] | None = None  # without its task

    def wake(self) -> None:
        self._woken.set()

    def end(self) -> bool:
        """Answer what is known, without the task that waits. Returns False if only that task can."""
        if self.answer_at_once is None or self.last_read is None or self._woken.is_set():
            return False
        self.answer_at_once(self.last_read.at_the_stop())
        return True

    async def wait(self, timeout: float) -> bool:  # noqa: ASYNC109 - the answer to running out is False
        """Return True if something changed since the last read, False if the time ran out."""
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            # asgiref swallows a cancellation that arrives while its thread works, so honour it here.
            raise asyncio.CancelledError
        try:
            async with asyncio.timeout(timeout):
                await self._woken.wait()
        except TimeoutError:
            return False
        self._woken.clear()
        return True


class WaiterHub:
    """Register first, then read the row, then wait: then no decision is missed between them."""

    def __init__(self) -> None:
        self.draining = False
        self._waiters: dict[str, set[Waiter]] = {}
        self._listener: Callable[[dict[str, Any]], None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._subscribed = asyncio.Event()
        self._occupied = asyncio.Event()

    def __len__(self) -> int:
        return sum(len(waiters) for waiters in self._waiters.values())

    @asynccontextmanager
    async def waiter(self, proposal_id: object) -> AsyncIterator[Waiter]:
        key, waiter = str(proposal_id), Waiter()
        self._start()
        self._waiters.setdefault(key, set()).add(waiter)
        self._occupied.set()
        if self.draining:
            waiter.wake()
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._subscribed.wait(), SUBSCRIBE_PATIENCE)
            yield waiter
        finally:
            self._forget(key, waiter)

    def notify(self, outcome: Outcome) -> None:
        """Pass a committed outcome to the calls that wait for it in this process. For other threads.

        Returns at once, also when the loop has just stopped: then nobody waits any more.
        """
        loop = self._loop
        if loop is not None and outcome.proposal_id in self._waiters:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._deliver, outcome)

    def _deliver(self, outcome: Outcome) -> None:
        for waiter in self._waiters.get(outcome.proposal_id, ()):
            waiter.outcome = outcome
            waiter.wake()

    def drain(self) -> None:
        """End every wait because the server stops. Each call is answered with its last read.

        Thousands of tasks take longer than a stop may, so most calls are answered here: 10,000 in a second.
        """
        self.draining = True
        self._subscribed.set()  # those that still wait for the subscription need it no longer
        for key, waiters in list(self._waiters.items()):
            for waiter in list(waiters):
                if waiter.end():
                    self._forget(key, waiter)
                else:
                    waiter.wake()

    def on_message(self, listener: Callable[[dict[str, Any]], None]) -> None:
        """Pass messages to all workers that are not about a proposal to `listener`."""
        self._listener = listener

    async def stop(self) -> None:
        await cancel_and_wait(self._tasks)
        self._tasks = []
        self._loop = None

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        self._loop = loop
        events.send_on(loop)
        self._waiters = {}
        self._subscribed, self._occupied = asyncio.Event(), asyncio.Event()
        # A context of their own, because they outlive the request that starts them.
        self._tasks = [
            loop.create_task(self._listen(), context=Context()),
            loop.create_task(self._sweep(), context=Context()),
        ]

    def _forget(self, key: str, waiter: Waiter) -> None:
        waiters = self._waiters.get(key, set())
        waiters.discard(waiter)
        if not waiters:
            self._waiters.pop(key, None)
        if not self._waiters:
            self._occupied.clear()

    def _wake(self, proposal_ids: Iterable[object]) -> None:
        for proposal_id in proposal_ids:
            for waiter in self._waiters.get(str(proposal_id), ()):
                waiter.wake()

    def _wake_all(self) -> None:
        self._wake(list(self._waiters))

    def _receive(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._wake([message["id"]])
        elif self._listener is not None:
            self._listener(message)

    async def _listen(self) -> None:
        """The one subscription. After it broke every waiter reads again, because messages may be lost."""
        while True:
            try:
                layer = get_channel_layer()
                channel = await layer.new_channel("waiters")
                await layer.group_add(events.WAITERS, channel)
                self._subscribed.set()
                self._wake_all()
                while True:
                    message = await layer.receive(channel)
                    self._receive(message)
            except Exception:
                self._subscribed.clear()
                log.exception("The subscription to decisions broke; subscribing again in a second.")
                await asyncio.sleep(1)

    async def _sweep(self) -> None:
        """Find decisions without a message: those of commands, or those whose message was lost.

        Audit numbers follow commit order without gaps, so everything new comes after the last one seen.
        """
        seen: int | None = None
        watch = _CommitWatch()
        while True:
            if not self._waiters:
                seen = None
                await self._occupied.wait()
            try:
                if seen is None:
                    seen = await _newest_seq()
                    self._wake_all()
                await watch.next_commit()
                for seq, proposal_id in await _after(seen):
                    self._wake([proposal_id])
                    seen = seq
            except Exception:
                log.exception("The sweep failed; trying again in a second.")
                await asyncio.sleep(1)


class _CommitWatch:
    """Returns when another connection may have committed: at once on SQLite, after a pause elsewhere."""

    def __init__(self) -> None:
        self._seen: tuple[int, int] | None = None

    async def next_commit(self) -> None:
        if connection.vendor != "sqlite":
            await asyncio.sleep(SWEEP_INTERVAL)
            return
        for _ in range(round(SWEEP_INTERVAL / WATCH_INTERVAL)):
            await asyncio.sleep(WATCH_INTERVAL)
            if self._changed():
                return

    def _changed(self) -> bool:
        """Check SQLite's write-ahead log, which every commit writes to: cheaper than a query.

        A second change within one tick of the file system's clock is found by the next sweep.
        """
        try:
            log_file = Path(f"{connection.settings_dict['NAME']}-wal").stat()
        except FileNotFoundError:
            return False
        now = (log_file.st_mtime_ns, log_file.st_size)
        changed, self._seen = now != self._seen, now
        return changed


@sync_to_async
def _newest_seq() -> int:
    close_old_connections()
    return audit.newest_seq()


@sync_to_async
def _after(seq: int) -> list[tuple[int, object]]:
    close_old_connections()
    rows = AuditEvent.objects.filter(seq__gt=seq).order_by("seq")
    return list(rows.values_list("seq", "proposal_id")[:5000])


hub = WaiterHub()
