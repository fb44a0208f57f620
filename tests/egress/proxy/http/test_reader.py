"""Reading heads from a connection: what a deadline in the same moment does to them."""

from __future__ import annotations

import asyncio

from egress.proxy.config import Limits
from egress.proxy.http.reader import read_head
from egress.proxy.net.connection import Connection
from egress.proxy.net.deadline_timer import DeadlineTimer
from egress.proxy.net.wakeup import Wakeup

HEAD = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"


async def test_a_head_that_comes_as_its_deadline_ends_is_served_in_full() -> None:
    connection = Connection(Wakeup(), DeadlineTimer())
    reading = asyncio.create_task(read_head(connection, Limits(), lambda: False, None, silence=60))
    await asyncio.sleep(0)
    connection.expired = True
    connection.buffer += HEAD
    connection.bell.ring()
    assert await reading == HEAD
    assert not connection.expired, "or the exchange would take it for the origin's silence"
