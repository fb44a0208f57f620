"""The web process as a destination: what arrives on a bottle's agent socket, or for the name `supervise`.

Trust boundary: the private socket believes one header about who is asking. It is written only here, and every
spelling of it that the agent sent is dropped.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from egress.proxy.errors import Unreachable
from egress.proxy.http.heads import Field, RequestHead, ResponseHead
from egress.proxy.http.targets import Target
from egress.proxy.http.writer import request_bytes
from egress.proxy.net.connection import Connection
from egress.proxy.net.deadline_timer import DeadlineTimer
from egress.proxy.net.fair_scheduler import Begin
from egress.proxy.request.destination import Uninspected
from egress.proxy.tls.connect import open_connection

IDENTITY = b"X-Bottle-Identity"
_CONNECT_SECONDS = 5


class WebProcess:
    route = None

    def __init__(
        self, path: Path, slug: str, target: Target, method: str, *, watch: DeadlineTimer, begin: Begin
    ) -> None:
        self.request = target.asked_with(method)
        self.begin = begin
        self._path = path
        self._slug = slug
        self._origin_form = target.origin_form
        self._watch = watch
        self.inspected = Uninspected()

    def request_head(self, head: RequestHead) -> bytes:
        # The web process makes the same variable of a name with '_' as of one with '-'.
        fields = [entry for entry in head.travelling if b"_" not in entry[0] and entry[0] != IDENTITY.lower()]
        fields.append((IDENTITY.lower(), IDENTITY, self._slug.encode("ascii")))
        return request_bytes(head, self._origin_form, head.single.get(b"host", b"supervise"), fields)

    def answer_fields(self, head: ResponseHead) -> list[Field]:
        return head.travelling

    def reuse(self, client: Connection, *, repeatable: bool) -> Connection | None:
        return None

    async def open(self, client: Connection) -> Connection:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                await asyncio.get_running_loop().sock_connect(sock, str(self._path))
        except (OSError, TimeoutError) as error:
            sock.close()
            raise Unreachable(
                "supervisor-down", "The supervisor is not running. Try again in a moment.", 503
            ) from error
        return await open_connection(sock, client, self._watch)

    def return_connection(self, connection: Connection) -> None:
        connection.close()
