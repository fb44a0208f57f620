"""manage.py web: one web worker. `up` starts as many as WEB_WORKERS says; a team may start its own."""

from __future__ import annotations

import ctypes
import signal
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from botbottle import listeners
from botbottle.checks import refuse_misconfiguration
from botbottle.environment import BadSetting

PR_SET_PDEATHSIG = 1


class Command(BaseCommand):
    help = "Serve both planes in this process, on listeners of its own or those handed down by 'up'."

    requires_system_checks: list[str] = []  # run in handle: one sentence instead of a list

    def handle(self, *args: Any, **options: Any) -> None:
        refuse_misconfiguration()
        inherited = listeners.inherited()
        if inherited is not None:
            _die_with_parent()
            _serve(inherited)
            return
        opened = listeners.open_all(
            settings.BOTTLE_HOME,
            agent=(settings.SUPERVISE_BIND, settings.SUPERVISE_PORT),
            console=(settings.CONSOLE_BIND, settings.CONSOLE_PORT),
        )
        with listeners.published(settings.BOTTLE_HOME, opened):
            _serve(opened)


def _serve(opened: list[listeners.Listener]) -> None:
    from botbottle.server import serve  # noqa: PLC0415 - installs Twisted's reactor

    serve(opened)


def _die_with_parent() -> None:
    """A worker without its supervisor would hold the ports and never be restarted."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise BadSetting("This system cannot tie a worker to its supervisor. Run 'manage.py web' by itself.")
