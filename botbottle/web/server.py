"""The web process: Daphne on open listeners, with bounded bodies and a stop that answers pending calls."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import logging
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from typing import Any, Protocol

from daphne.http_protocol import HTTPFactory, WebRequest
from daphne.server import Server
from django.conf import settings
from twisted.internet import defer, reactor, tcp, unix
from twisted.internet.task import LoopingCall
from twisted.web.http import HTTPChannel

from botbottle.core.tasks import cancel_and_wait
from botbottle.web.access_log import AccessEntry
from botbottle.web.connections import Connections, Place, for_planes
from botbottle.web.listeners import BACKLOG, Listener
from botbottle.web.overload import BEGUN, TOO_MANY
from botbottle.web.owners import Owner, owner_of
from botbottle.web.planes import Plane
from botbottle.web.rpc_errors import INVALID_REQUEST, UNAVAILABLE, error_body

log = logging.getLogger(__name__)
ANSWER_SECONDS = 3.5  # for waiting calls and open requests to be answered
WORK_SECONDS = 1.0  # of these, for requests at work before waiting calls are answered
LAST_SECONDS = 4.8  # then the stop is enforced
STOPPING = "bot-bottle is stopping. Nothing was changed. Make the same request again in a few seconds."
# The loop releases the interpreter at every read and write. This is how long it waits to get it back from
# a computing thread: with Python's default of 5 ms, a few busy threads would delay all traffic.
SWITCH_SECONDS = 0.0005
TEND_SECONDS = 1.0  # between checks for idle or slow connections
MOST_ACCEPTS = 4  # connections per listener in one iteration of the loop
PATIENCE_FACTOR = 16  # how many times the limit is read and discarded before the connection is cut


class BoundedRequest(WebRequest):  # type: ignore[misc]
    """Refuses a body over the plane's limit without storing it: Daphne alone would spool any size to disk."""

    received = 0
    finished: int  # Twisted's

    is_turned_away = False

    def gotLength(self, length: int | None) -> None:  # noqa: N802 - Twisted's name
        """Keep agents' bodies in memory: as a file, each would need a descriptor."""
        if self.channel.factory.plane is Plane.OPERATOR:
            super().gotLength(length)
        else:
            self.content = BytesIO()

    def handleContentChunk(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        self.received += len(data)
        if self.received <= self.limit and not self.is_turned_away:
            super().handleContentChunk(data)
        elif self.received > self.limit * PATIENCE_FACTOR:
            self.channel.transport.abortConnection()

    def process(self) -> Any:
        if self.is_turned_away:
            return None
        if self.server.stopping:
            return self._refuse(503, STOPPING, retry_after=b"5")
        if self.received > self.limit:
            return self._refuse(413, f"The request body is larger than {self.limit} bytes. Send less.")
        return super().process()

    def write_last(self, data: bytes) -> None:
        """End a streaming response without its application, since a stop has thousands to end."""
        if self.finished or self.channel is None:
            return
        self.finished = 1
        transport = self.channel.transport
        left = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if self.chunked else data
        if transport.connected and not (transport.dataBuffer or transport._tempDataBuffer):
            sent = transport.writeSomeData(left)  # data that fits into the socket does not need the reactor
            left = left[sent:] if isinstance(sent, int) else b""
        transport.write(left)

    @property
    def limit(self) -> int:
        agents = self.channel.factory.plane is not Plane.OPERATOR
        return settings.SUPERVISE_MAX_BODY_BYTES if agents else settings.CONSOLE_MAX_BODY_BYTES

    def _refuse(self, status: int, sentence: str, *, retry_after: bytes = b"") -> None:
        self.setResponseCode(status)
        self.setHeader(b"content-type", b"application/json")
        self.setHeader(b"connection", b"close")
        if retry_after:
            self.setHeader(b"retry-after", retry_after)
        self.write(error_body(INVALID_REQUEST, sentence))
        self.finish()
        method, path = (each.decode("ascii", "replace") for each in (self.method, self.path))
        AccessEntry(method, path).write(status)


class PlainSpeakingChannel(HTTPChannel):  # type: ignore[misc]
    """HTTP/1.1 that explains why a request could not be parsed; Twisted's own does not.

    It reports its activity to the listener's connections.
    """

    place: Place | None = None

    def connectionMade(self) -> None:  # noqa: N802 - Twisted's name
        super().connectionMade()
        self.transport.place = self.place = self.factory.connections.opened(self, self._owner())
        if self.place is None:
            self.transport.abortConnection()

    def dataReceived(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        if self.place is not None:
            self.factory.connections.arriving(self.place)
            super().dataReceived(data)

    def allHeadersReceived(self) -> None:  # noqa: N802 - Twisted's name
        super().allHeadersReceived()
        owner = self._owner(self.requests[-1].requestHeaders.getAllRawHeaders())
        if not self.factory.connections.requested(self.place, owner, has_body=self.length != 0):
            self.requests[-1].is_turned_away = True
            self._answer_and_close(
                b"429 Too Many Requests\r\nRetry-After: 5", error_body(UNAVAILABLE, TOO_MANY)
            )

    def allContentReceived(self) -> None:  # noqa: N802 - Twisted's name
        self.factory.connections.complete(self.place)
        super().allContentReceived()

    def requestDone(self, request: Any) -> None:  # noqa: N802 - Twisted's name
        self.factory.connections.answered(self.place)
        super().requestDone(request)

    def dismiss(self) -> None:
        """Close a connection that has no pending request."""
        if self._abortingCall is None:
            self.timeoutConnection()

    def _owner(self, headers: Iterable[tuple[bytes, list[bytes]]] = ()) -> Owner:
        address = getattr(self.transport.getPeer(), "host", None)
        given = ((name, value) for name, values in headers for value in values)
        return owner_of(self.factory.plane, address, given)

    def _respondToBadRequestAndDisconnect(self) -> None:  # noqa: N802 - Twisted's name
        self._answer_and_close(
            b"400 Bad Request",
            error_body(
                INVALID_REQUEST,
                "The request could not be read. Check its first line, its headers and that Content-Length is "
                "one whole number.",
            ),
        )

    def _answer_and_close(self, status: bytes, body: bytes) -> None:
        head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\n" % status
        length = b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
        self.transport.write(head + length + body)
        self.loseConnection()

    def lineLengthExceeded(self, line: bytes) -> None:  # noqa: N802 - Twisted's name
        """Answer before closing; Twisted only hangs up. The rest of the line may still arrive afterwards."""
        if not self.transport.disconnecting:
            self._respondToBadRequestAndDisconnect()


class BoundedFactory(HTTPFactory):  # type: ignore[misc]
    protocol = PlainSpeakingChannel

    def __init__(self, server: Server, plane: Plane, connections: Connections) -> None:
        super().__init__(server)
        self.plane = plane
        self.connections = connections

    def buildProtocol(self, address: Any) -> Any:  # noqa: N802 - Twisted's name
        protocol = super().buildProtocol(address)
        protocol.requestFactory = BoundedRequest
        return protocol


class Work(Protocol):
    """What the process does besides answering requests."""

    def start(self) -> None: ...

    async def stop(self) -> None: ...

    def answer_waiting_calls(self) -> None:
        """Begin to answer all calls that wait for a decision: the process stops."""

    def has_waiting_calls(self) -> bool: ...


class WebServer(Server):  # type: ignore[misc]
    """Daphne's server for bound sockets."""

    def __init__(
        self, application: Any, opened: list[Listener], work: Work, ready: Callable[[], None]
    ) -> None:
        super().__init__(
            application,
            endpoints=["adopted"],
            http_timeout=None,  # waiting calls have a limit of their own
            websocket_timeout=-1,
            server_name="bot-bottle",
            ready_callable=self._adopt,
        )
        self.endpoints: list[str] = []
        self.stopping = False
        self._opened = opened
        self._ports: list[Any] = []
        self._ready = ready
        self._work = work

    def _adopt(self) -> None:
        most = settings.SUPERVISE_MAX_BODY_BYTES  # Autobahn's default accepts a frame of any size
        self.ws_factory.setProtocolOptions(maxFramePayloadSize=most, maxMessagePayloadSize=most)
        planes = for_planes(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        for listener in self._opened:
            listener.socket.setblocking(False)  # another worker may win the race for a connection
            factory = BoundedFactory(self, listener.plane, planes[listener.plane])
            self._ports.append(_listen(listener, factory))
            listener.socket.close()
            LoopingCall(planes[listener.plane].close_slow).start(TEND_SECONDS, now=False)
        reactor.addSystemEventTrigger("after", "shutdown", self.application.threads.close)
        reactor.callWhenRunning(self._begin)

    def _begin(self) -> None:
        self._work.start()
        self._ready()

    def create_application(self, protocol: Any, scope: dict[str, Any]) -> Any:
        """Set the plane of the accepting listener: two listeners may have one port, on two addresses."""
        scope["plane"] = protocol.transport.server.factory.plane
        scope["write_last"] = getattr(protocol, "write_last", None)
        protocol.scope = scope
        return super().create_application(protocol, scope)

    def protocol_disconnected(self, protocol: Any) -> None:
        """Cancel a request that has not begun as soon as its client leaves; Daphne would wait ten seconds."""
        super().protocol_disconnected(protocol)
        application = self.connections[protocol].get("application_instance")
        if application is not None and not getattr(protocol, "scope", {}).get(BEGUN):
            application.cancel()

    def kill_all_applications(self) -> Any:
        """On SIGTERM and Ctrl-C: answer open requests, then end the loop."""
        return defer.Deferred.fromFuture(asyncio.ensure_future(self._stop()))

    async def _stop(self) -> None:
        """Stop within bounded time; `_enforce_the_stop` covers a blocked loop."""
        self.stopping = True  # later requests are refused
        for port in self._ports:
            port.stopListening()
        await asyncio.gather(self._work.stop(), self._answer_all())
        await cancel_and_wait(self._unanswered())
        reactor.crash()  # the process's end closes thousands of connections at once, the loop one by one

    async def _answer_all(self) -> None:
        """Finish requests at work first: a decision among them may be what a call waits for."""
        deadline = time.monotonic() + ANSWER_SECONDS
        await self._until(self._works_on_none, deadline - ANSWER_SECONDS + WORK_SECONDS)
        gc.disable()  # garbage of thousands of calls ends with the process
        self._work.answer_waiting_calls()
        await self._until(self._has_answered_all, deadline)

    async def _until(self, condition: Callable[[], bool], deadline: float) -> None:
        while not condition() and time.monotonic() < deadline:  # noqa: ASYNC110 - nothing tells when it is true
            await asyncio.sleep(0.02)

    def _works_on_none(self) -> bool:
        """Whether only waiting calls are left, whose answers have begun."""
        return all(each._response_started for each in self._open_requests())

    def _has_answered_all(self) -> bool:
        """Whether every answer is in its socket."""
        return not (self._work.has_waiting_calls() or any(self._open_requests()) or reactor.getWriters())

    def _open_requests(self) -> Iterator[WebRequest]:
        """Requests that have arrived and are not answered, without consoles' websockets."""
        for each, details in self.connections.items():
            has_arrived = isinstance(each, WebRequest) and each.application_queue is not None
            if has_arrived and not (each.finished or "disconnected" in details):
                yield each

    def _unanswered(self) -> list[asyncio.Task[None]]:
        """Tasks to cancel: consoles' websockets, and requests that took too long."""
        tasks = [
            details.get("application_instance")
            for each, details in self.connections.items()
            if not getattr(each, "finished", False)
        ]
        return [task for task in tasks if task is not None and not task.done()]


class PlacedTransport:
    """A connection that reports its end to its listener, whatever protocol it speaks."""

    place: Place | None = None

    def connectionLost(self, reason: Any) -> None:  # noqa: N802 - Twisted's name
        super().connectionLost(reason)  # type: ignore[misc]
        if self.place is not None:
            self.server.factory.connections.closed(self.place)  # type: ignore[attr-defined]


class PlacedTcp(PlacedTransport, tcp.Server):  # type: ignore[misc]
    pass


class PlacedUnix(PlacedTransport, unix.Server):  # type: ignore[misc]
    pass


class BoundedPort:
    """Accepts only as many connections as there is room for, and few at a time."""

    factory: BoundedFactory
    connected: bool
    disconnecting: bool
    numberAccepts: int  # noqa: N815 - Twisted's name

    def startListening(self) -> None:  # noqa: N802 - Twisted's name
        super().startListening()  # type: ignore[misc]
        self.factory.connections.set_acceptor(self)  # type: ignore[arg-type]

    def startReading(self) -> None:  # noqa: N802 - Twisted's name
        if self.connected and not self.disconnecting:
            super().startReading()  # type: ignore[misc]

    def doRead(self) -> None:  # noqa: N802 - Twisted's name
        if room := self.factory.connections.room():
            self.numberAccepts = min(room, MOST_ACCEPTS)
            super().doRead()  # type: ignore[misc]


class BoundedTcpPort(BoundedPort, tcp.Port):  # type: ignore[misc]
    transport = PlacedTcp


class SharedUnixPort(BoundedPort, unix.Port):  # type: ignore[misc]
    """A Unix listener shared by workers: a worker does not unlink it or change its mode."""

    transport = PlacedUnix
    _shouldShutdown = False  # noqa: N815 - Twisted's name; by itself it spares only TCP listeners

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.mode = 0o600
        self.backlog = BACKLOG  # Twisted sets that of a Unix listener again, by itself to 50

    def connectionLost(self, reason: Any) -> None:  # noqa: N802 - Twisted's name
        tcp.Port.connectionLost(self, reason)


def _listen(listener: Listener, factory: BoundedFactory) -> Any:
    number, family = listener.socket.fileno(), listener.socket.family
    if family == socket.AF_UNIX:
        port = SharedUnixPort._fromListeningDescriptor(reactor, number, factory)
    else:
        port = BoundedTcpPort._fromListeningDescriptor(reactor, number, family, factory)
    port.startListening()
    return port


def serve(application: Any, opened: list[Listener], work: Work, *, ready: Callable[[], None]) -> None:
    """Run until SIGTERM or SIGINT. `ready` is called once requests are answered."""
    _raise_file_limit()
    reactor.addSystemEventTrigger("before", "shutdown", _enforce_the_stop)
    sys.setswitchinterval(SWITCH_SECONDS)
    WebServer(application, opened, work, ready).run()


def _enforce_the_stop() -> None:
    """If the loop hangs, print every thread's stack and exit with code 1."""
    faulthandler.dump_traceback_later(LAST_SECONDS, exit=True)


def _raise_file_limit() -> None:
    """Raise the limit of open files: thousands of calls are thousands of sockets."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 65536
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
