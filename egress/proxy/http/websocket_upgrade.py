"""Validation of a 101: whether it turns the connection into the WebSocket that was asked for."""

from __future__ import annotations

import base64
import hashlib

from egress.proxy.http.heads import RequestHead, ResponseHead

_WEBSOCKET = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def is_valid_upgrade(asked: RequestHead, answer: ResponseHead) -> bool:
    """A 101 makes an open pipe, so it must be the answer to what was asked."""
    key = b"".join(asked.values(b"sec-websocket-key"))
    expected = base64.b64encode(hashlib.sha1(key + _WEBSOCKET, usedforsecurity=False).digest())
    return (
        asked.wants_websocket
        and b"upgrade" in answer.connection
        and answer.single.get(b"upgrade", b"").lower() == b"websocket"
        and answer.values(b"sec-websocket-accept") == [expected]
    )
