"""Closes websockets after a database fault with a code of their own, so that the page reconnects."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from botbottle.database.faults import fault_of

log = logging.getLogger(__name__)
UNAVAILABLE = 4503
Application = Callable[[Any, Any, Any], Awaitable[None]]


class ClosedOnFault:
    """Closes a websocket on a database fault; other errors are raised."""

    def __init__(self, application: Application) -> None:
        self.application = application

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await self.application(scope, receive, send)
        except Exception as error:
            if fault_of(error) is None:
                raise
            log.error("A websocket was closed.", exc_info=error)
            await send({"type": "websocket.close", "code": UNAVAILABLE})
