"""The web process: Daphne on listeners that are already open, bounded bodies, and a stop that answers."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import socket
from collections.abc import Callable
from typing import Any

from daphne.http_protocol import HTTPFactory, WebRequest
from daphne.server import Server
from django.conf import settings
from twisted.internet import defer, reactor, tcp, unix
from twisted.web.http import HTTPChannel

from egress import data_plane
from egress.intake import Intake
from supervise import events
from supervise.caretaker import Caretaker
from supervise.mcp.access import AccessEntry
from supervise.waiting import hub
from supervise.webhooks import Sender

from .listeners import Listener
from .planes import Plane

log = logging.getLogger(__name__)
DRAIN_SECONDS = 3.0
ACK_SECONDS = 1.0  # how long a decision that is just being applied still waits for the proxy
PATIENCE_FACTOR = 16  # how much of an oversized body is read and thrown away before the connection is cut


class BoundedRequest(WebRequest):  # type: ignore[misc]
    """Refuses a body over the plane's limit without keeping it: Daphne alone would spool any size to disk."""

    received = 0

    def handleContentChunk(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        self.received += len(data)
        if self.received <= self.limit:
            super().handleContentChunk(data)
        elif self.received > self.limit * PATIENCE_FACTOR:
            self.channel.transport.abortConnection()

    def process(self) -> Any:
        if self.received > self.limit:
            return self._too_large()
        return super().process()

    def finish(self) -> None:
        """The last bytes go to the socket now: a call that waited long should not wait for another turn."""
        transport = self.channel.transport if self.channel else None
        super().finish()
        if isinstance(transport, tcp.Connection) and not transport.disconnecting:
            transport.doWrite()

    @property
    def limit(self) -> int:
        agents = self.channel.factory.plane is not Plane.OPERATOR
        return settings.SUPERVISE_MAX_BODY_BYTES if agents else settings.CONSOLE_MAX_BODY_BYTES

    def _too_large(self) -> None:
        self.setResponseCode(413)
        self.setHeader(b"content-type", b"application/json")
        self.setHeader(b"connection", b"close")
        self.write(_error_body(f"The request body is larger than {self.limit} bytes. Send less."))
        self.finish()
        AccessEntry(self.method.decode("ascii", "replace"), self.path.decode("ascii", "replace")).write(413)


class PlainSpeakingChannel(HTTPChannel):  # type: ignore[misc]
    """HTTP/1.1 that says what was wrong with a request it could not read; Twisted's own says nothing."""

    def _respondToBadRequestAndDisconnect(self) -> None:  # noqa: N802 - Twisted's name
        body = _error_body(
            "The request could not be read. Check its first line, its headers and that Content-Length is one "
            "whole number."
        )
        head = (
            f"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        )
        self.transport.write(head.encode("ascii") + b"Connection: close\r\n\r\n" + body)
        self.loseConnection()

    def lineLengthExceeded(self, line: bytes) -> None:  # noqa: N802 - Twisted's name
        """Twisted's own only hangs up. More of the same line may still come in after the answer."""
        if not self.transport.disconnecting:
            self._respondToBadRequestAndDisconnect()


class BoundedFactory(HTTPFactory):  # type: ignore[misc]
    protocol = PlainSpeakingChannel

    def __init__(self, server: Server, plane: Plane) -> None:
        super().__init__(server)
        self.plane = plane

    def buildProtocol(self, address: Any) -> Any:  # noqa: N802 - Twisted's name
        protocol = super().buildProtocol(address)
        protocol.requestFactory = BoundedRequest
        return protocol


class WebServer(Server):  # type: ignore[misc]
    """Daphne's server for sockets that are already bound."""

    def __init__(self, application: Any, opened: list[Listener], ready: Callable[[], None]) -> None:
        super().__init__(
            application,
            endpoints=["adopted"],
            http_timeout=None,  # waiting calls have their own limit
            websocket_timeout=-1,
            server_name="bot-bottle",
            ready_callable=self._adopt,
        )
        self.endpoints: list[str] = []
        self._opened = opened
        self._ready = ready
        self._caretaker = Caretaker()
        self._intake = Intake(when_refused=events.announce_refusals)
        self._sender = Sender()

    def _adopt(self) -> None:
        most = settings.SUPERVISE_MAX_BODY_BYTES  # Autobahn alone would keep a frame of any size
        self.ws_factory.setProtocolOptions(maxFramePayloadSize=most, maxMessagePayloadSize=most)
        for listener in self._opened:
            listener.socket.setblocking(False)  # another worker may win the race for a connection
            _listen(listener, BoundedFactory(self, listener.plane))
            listener.socket.close()
        reactor.callWhenRunning(self._begin)

    def _begin(self) -> None:
        events.send_on(asyncio.get_event_loop())  # first: the threads below have news from their start
        self._caretaker.start()
        if settings.EGRESS_PROXY:
            self._intake.start()
        self._sender.start()
        self._ready()

    def create_application(self, protocol: Any, scope: dict[str, Any]) -> Any:
        """The plane is the accepting listener's: two of them may have one port, on two addresses."""
        scope["plane"] = protocol.transport.server.factory.plane
        return super().create_application(protocol, scope)

    def kill_all_applications(self) -> Any:
        """On SIGTERM and Ctrl-C: let every waiting call answer `pending`, then end what is left."""
        drained = defer.Deferred.fromFuture(asyncio.ensure_future(self._drain()))
        drained.addBoth(lambda _: Server.kill_all_applications(self))
        return drained

    async def _drain(self) -> None:
        hub.drain()
        self._intake.stop()
        self._sender.stop()
        await self._caretaker.stop()
        asyncio.get_running_loop().call_later(ACK_SECONDS, data_plane.give_up)
        async with asyncio.timeout(DRAIN_SECONDS):
            await hub.vacated()
        await asyncio.sleep(0.1)  # the last bytes are on their way out
        await hub.stop()


class SharedUnixPort(unix.Port):  # type: ignore[misc]
    """A Unix listener of several workers: none opens it to others, or ends it for all when it ends."""

    _shouldShutdown = False  # noqa: N815 - Twisted's name; by itself it spares only TCP listeners

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.mode = 0o600

    def connectionLost(self, reason: Any) -> None:  # noqa: N802 - Twisted's name
        tcp.Port.connectionLost(self, reason)


def _listen(listener: Listener, factory: BoundedFactory) -> None:
    number, family = listener.socket.fileno(), listener.socket.family
    if family == socket.AF_UNIX:
        SharedUnixPort._fromListeningDescriptor(reactor, number, factory).startListening()
    else:
        reactor.adoptStreamPort(number, family, factory)


def _error_body(sentence: str) -> bytes:
    """For what fails before Django sees it: the same shape as the endpoint's own errors."""
    error = {"code": -32600, "message": sentence}
    return json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode("ascii")


def serve(opened: list[Listener], *, ready: Callable[[], None]) -> None:
    """Run until SIGTERM or SIGINT. `ready` is called once requests are answered."""
    from .asgi import application  # noqa: PLC0415 - Django must be set up first

    _raise_file_limit()
    WebServer(application, opened, ready).run()
    data_plane.give_up()  # the interpreter's end waits for every thread that served a request


def _raise_file_limit() -> None:
    """Thousands of waiting calls are thousands of sockets; the usual soft limit is 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 65536
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
