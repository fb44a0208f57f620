"""What a web process does besides answering requests: background jobs, records, webhooks, waiting calls."""

from __future__ import annotations

import asyncio

from django.conf import settings

from egress.tables import proxy_client
from egress.traffic.record_import import RecordImport
from supervise import events
from supervise.background import BackgroundJobs
from supervise.proposals.waiting import hub
from supervise.webhooks.sender import Sender

ACK_SECONDS = 1.0  # how long a decision being applied still waits for the proxy


class ProcessWork:
    """The web server starts it and stops it: see `botbottle.web.server.Work`."""

    def __init__(self) -> None:
        self._background_jobs = BackgroundJobs()
        self._record_import = RecordImport(when_refused=events.announce_refusals)
        self._sender = Sender()

    def start(self) -> None:
        events.send_on(asyncio.get_event_loop())  # first: the threads below announce events from their start
        self._background_jobs.start()
        if settings.EGRESS_PROXY:
            self._record_import.start()
        self._sender.start()

    async def stop(self) -> None:
        self._record_import.stop()
        self._sender.stop()
        asyncio.get_running_loop().call_later(ACK_SECONDS, proxy_client.abort_calls)
        await self._background_jobs.stop()

    def answer_waiting_calls(self) -> None:
        hub.drain()

    def has_waiting_calls(self) -> bool:
        return bool(len(hub))
