"""A download, an event stream and a WebSocket that stay open through all reloads, compared byte by byte."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httptools

from bench.outbound.load import Connection
from bench.outbound.origin import PACE, WEBSOCKET, message, piece

if TYPE_CHECKING:
    from bench.outbound.steady import Load

_AFTER_ALL = 2  # pieces after the last reload: the first one may have been on its way already
_UPGRADE = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


class Stream(Connection):
    """It must not end, and every piece must be the next one. A WebSocket is told what it has to tell back."""

    def __init__(self, load: Load, way: str, kind: str) -> None:
        super().__init__(b"")
        self._load = load
        self._kind = kind
        self._name = f"{way} {kind}"
        self._get = load.lanes[way].get(f"/streams/{kind}")
        self._parser = httptools.HttpResponseParser(self)
        self._upgraded = False
        self._received = b""
        self._number = self._after_all = 0

    def ask(self) -> None:
        self._connecting = False
        self.transport.write(self._get[:-2] + _UPGRADE if self._kind == WEBSOCKET else self._get)

    def data_received(self, data: bytes) -> None:
        if self._connecting:
            self._take_connect_answer(data)
        elif self._upgraded:
            self.on_body(data)
        else:
            self._read_answer(data)

    def _read_answer(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._upgraded = True
            self._speak()
            self.on_body(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._fail(f"not HTTP: {error}")

    def on_body(self, data: bytes) -> None:
        self._received += data
        while self._received:
            expected = piece(self._kind, self._number)
            if self._upgraded:
                expected = message(expected)
            start = self._received[: len(expected)]
            if not expected.startswith(start):
                self._fail(f"wrong after {self._number} pieces: {start[:300]!r}")
                return
            if len(start) < len(expected):
                return
            self._received = self._received[len(expected) :]
            self._number += 1
            self._go_on()

    def on_message_complete(self) -> None:
        if not self._parser.should_upgrade():
            self._fail(f"it ended after {self._number} pieces: {self._received[:300]!r}")

    def _go_on(self) -> None:
        if not self.answered.done():
            self.answered.set_result(None)
        if self._upgraded:
            asyncio.get_running_loop().call_later(PACE, self._speak)
        if self._load.stopping:
            self._after_all += 1
            if self._after_all == _AFTER_ALL:
                self._load.lived_through(self, self._name)

    def _speak(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(message(piece(self._kind, self._number), masked=True))

    def _fail(self, why: str) -> None:
        super()._fail(why)
        self._load.fail(self, f"{self._name}: {why}")
