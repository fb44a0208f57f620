"""The web process while it stops: new requests are refused, and a thread that hangs does not keep it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest
from twisted.internet.testing import StringTransport

from botbottle.web import server
from botbottle.web.connections import for_planes
from botbottle.web.planes import Plane
from supervise.process_work import ProcessWork
from tests.support import ROOT
from tests.support.timeouts import PATIENCE

REQUEST = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"
HANGS = """
import threading
import django
django.setup()
from botbottle.web import server
server.LAST_SECONDS = 0.1
server._enforce_the_stop()
threading.Thread(target=threading.Event().wait, name="hangs").start()
"""


@pytest.fixture
def web_server() -> server.WebServer:
    web_server = server.WebServer(None, [], ProcessWork(), lambda: None)
    web_server.connections = {}
    return web_server


def factory(web_server: server.WebServer) -> server.BoundedFactory:
    return server.BoundedFactory(web_server, Plane.AGENT, for_planes(1024)[Plane.AGENT])


def answer_to(web_server: server.WebServer, request: bytes) -> bytes:
    channel = factory(web_server).buildProtocol(None)
    transport = StringTransport()
    channel.makeConnection(transport)
    channel.dataReceived(request)
    return bytes(transport.value())


def test_a_request_during_a_stop_is_refused_with_what_to_do(web_server: server.WebServer) -> None:
    web_server.stopping = True
    head, _, body = answer_to(web_server, REQUEST).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503")
    assert b"retry-after: 5" in head.lower()
    assert b"Nothing was changed. Make the same request again" in body


class OpenRequest(server.WebRequest):  # type: ignore[misc]
    """One that has arrived, and is not answered yet."""

    def __init__(self) -> None:
        self.application_queue, self.finished, self._response_started = asyncio.Queue(), 0, False


async def test_a_stop_waits_for_open_requests_but_not_for_consoles(web_server: server.WebServer) -> None:
    request = OpenRequest()
    web_server.connections = {request: {}, "the websocket of a console": {}}
    assert not web_server._works_on_none() and not web_server._has_answered_all()
    request._response_started = True  # it waits for an operator
    assert web_server._works_on_none() and not web_server._has_answered_all()
    request.finished = 1
    assert web_server._has_answered_all()


def test_a_request_that_has_not_arrived_is_not_waited_for(web_server: server.WebServer) -> None:
    channel = factory(web_server).buildProtocol(None)
    channel.makeConnection(StringTransport())
    channel.dataReceived(REQUEST.removesuffix(b"}"))
    assert len(web_server.connections) == 1
    assert web_server._has_answered_all()
    assert web_server._unanswered() == []


@pytest.mark.process
def test_a_thread_that_hangs_is_named_and_does_not_keep_the_process() -> None:
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    finished = subprocess.run(
        [sys.executable, "-c", HANGS], cwd=ROOT, env=environment, capture_output=True, text=True,
        timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert finished.returncode == 1
    assert "in wait" in finished.stderr
