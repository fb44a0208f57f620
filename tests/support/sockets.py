"""A websocket to the application in process, which waits as long as tests wait for anything."""

from __future__ import annotations

from channels.testing import WebsocketCommunicator

from tests.support.timeouts import PATIENCE


class Socket(WebsocketCommunicator):
    """Channels' own one gives up after a second, which a busy machine may need."""

    async def connect(self, timeout: float = PATIENCE) -> tuple[bool, object]:  # noqa: ASYNC109
        return await super().connect(timeout)

    async def disconnect(self, code: int = 1000, timeout: float = PATIENCE) -> None:  # noqa: ASYNC109
        await super().disconnect(code, timeout)

    async def receive_output(self, timeout: float = PATIENCE) -> dict[str, object]:  # noqa: ASYNC109
        return await super().receive_output(timeout)

    async def receive_from(self, timeout: float = PATIENCE) -> str | bytes:  # noqa: ASYNC109
        return await super().receive_from(timeout)

    async def receive_json_from(self, timeout: float = PATIENCE) -> object:  # noqa: ASYNC109
        return await super().receive_json_from(timeout)
