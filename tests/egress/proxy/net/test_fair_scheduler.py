"""Long work is done a little at a time: the bottles take turns, and what a wire carries stays in order."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from egress.proxy.config import Limits
from egress.proxy.http.heads import parse_request
from egress.proxy.http.reader import read_body
from egress.proxy.net import fair_scheduler as turns
from egress.proxy.net.connection import Connection
from egress.proxy.net.deadline_timer import DeadlineTimer
from egress.proxy.net.fair_scheduler import FairScheduler, advance, at_once, result
from egress.proxy.net.wakeup import Wakeup


@pytest.fixture(autouse=True)
def one_step_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step uses up its time, and every turn."""
    monkeypatch.setattr(turns, "STEP_SECONDS", -1.0)
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.0)


class Diary:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def job(self, name: str, steps: int) -> turns.Step:
        def work() -> Iterator[None]:
            for _ in range(steps):
                self.lines.append(name)
                yield

        todo = work()
        return lambda: advance(todo)


async def emptied(turns: FairScheduler) -> None:
    while turns._waiting:
        await asyncio.sleep(0)


async def test_short_work_is_done_at_once() -> None:
    diary = Diary()
    FairScheduler().begin("a", diary.job("a", 0))
    begun = diary.job("b", 1)
    FairScheduler().begin("a", begun)
    assert diary.lines == ["b"]


async def test_a_bottle_with_much_work_does_not_keep_another_waiting() -> None:
    diary, shared = Diary(), FairScheduler()
    for number in range(20):
        shared.begin("greedy", diary.job(f"greedy {number}", 50))
    shared.begin("modest", diary.job("modest", 2))
    await emptied(shared)
    assert [place for place, line in enumerate(diary.lines) if line == "modest"][-1] < 8
    assert len(diary.lines) == 20 * 50 + 2


async def test_the_loop_goes_round_between_steps() -> None:
    diary, shared = Diary(), FairScheduler()
    shared.begin("a", diary.job("a", 100))
    rounds = 0
    while shared._waiting:
        before = len(diary.lines)
        await asyncio.sleep(0)
        rounds += 1
        assert len(diary.lines) - before <= 1
    assert rounds >= 99


async def test_short_works_of_one_round_are_not_all_done_in_it() -> None:
    diary, shared = Diary(), FairScheduler()
    for number in range(10):
        shared.begin("greedy", diary.job(str(number), 1))
    assert diary.lines == ["0"]
    await emptied(shared)
    assert diary.lines == [str(number) for number in range(10)]


async def test_a_task_gets_the_result_or_the_error() -> None:
    def work(fails: bool) -> Generator[None, None, bytes]:
        yield
        if fails:
            raise ValueError("no")
        yield
        return b"done"

    shared = FairScheduler()

    def begin(step: turns.Step) -> None:
        shared.begin("a", step)

    assert await result(work(False), begin) == await result(work(False), at_once) == b"done"
    with pytest.raises(ValueError, match="no"):
        await result(work(True), begin)


class Transport:
    """Notes whether it is read from."""

    def __init__(self) -> None:
        self.reading = True
        self.aborted = False

    def set_write_buffer_limits(self, **_: Any) -> None: ...

    def get_extra_info(self, _: str) -> None: ...

    def is_closing(self) -> bool:
        return self.aborted

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def abort(self) -> None:
        self.aborted = True


class Line:
    """A wire whose sink takes three steps for every piece."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.turns = FairScheduler()
        self.wire = Connection(Wakeup(), DeadlineTimer())
        self.transport = Transport()
        self.wire.connection_made(self.transport)  # type: ignore[arg-type]
        self.wire.drain_into(self._sink, lambda step: self.turns.begin(self, step))

    def _sink(self, data: bytes) -> Iterator[None]:
        for _ in range(3):
            yield
        if data == b"bad":
            raise RuntimeError("a mistake of ours")
        self.taken.append(data)
        if data.endswith(b"|rest"):
            self.wire.stop_draining(b"rest")


async def test_nothing_is_read_while_a_wire_is_worked_on() -> None:
    line = Line()
    line.wire.data_received(b"one")
    assert (line.taken, line.transport.reading) == ([], False)
    await emptied(line.turns)
    assert (line.taken, line.transport.reading) == ([b"one"], True)


async def test_what_comes_meanwhile_stays_in_order() -> None:
    line = Line()
    for piece in (b"one", b"two", b"three"):
        line.wire.data_received(piece)
    await emptied(line.turns)
    assert line.taken == [b"one", b"twothree"]


async def test_what_follows_the_end_of_a_body_stays_in_order() -> None:
    line = Line()
    line.wire.data_received(b"body|rest")
    line.wire.data_received(b" and more")
    await emptied(line.turns)
    assert (line.taken, bytes(line.wire.buffer)) == ([b"body|rest"], b"rest and more")


@pytest.mark.parametrize("way", ["eof", "lost"])
async def test_an_end_is_told_when_all_was_taken(way: str) -> None:
    line = Line()
    line.wire.data_received(b"last")
    if way == "eof":
        line.wire.eof_received()
    else:
        line.wire.connection_lost(None)
    assert not line.wire.ended
    await emptied(line.turns)
    assert (line.taken, line.wire.ended) == ([b"last"], True)


async def test_work_that_nobody_wants_any_more_is_dropped() -> None:
    line = Line()
    line.wire.data_received(b"one")
    line.wire.drop_sink()
    await emptied(line.turns)
    assert (line.taken, line.transport.reading) == ([], True)


async def test_a_mistake_in_the_work_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    line = Line()
    line.wire.data_received(b"bad")
    await emptied(line.turns)
    assert line.transport.aborted
    assert "ended with an error" in caplog.text


async def test_a_body_of_tiny_chunks_is_read_a_little_at_a_time() -> None:
    """Also where all of it has to be here before anything is sent."""
    wire, diary, shared = Connection(Wakeup(), DeadlineTimer()), Diary(), FairScheduler()
    wire.buffer += b"1\r\nx\r\n" * 10_000 + b"0\r\n\r\n"
    head = parse_request(
        b"POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n", max_fields=10
    )

    def begin(step: turns.Step) -> None:
        shared.begin("greedy", step)

    reading = asyncio.create_task(read_body(wire, head, Limits(), lambda _: None, begin))
    await asyncio.sleep(0)
    shared.begin("modest", diary.job("modest", 2))
    while len(diary.lines) < 2:
        await asyncio.sleep(0)
    assert not reading.done()
    assert await reading == b"x" * 10_000
