"""manage.py web: one web worker. `up` starts as many as WEB_WORKERS says; a team may start its own."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from botbottle import listeners
from botbottle.checks import refuse_a_key_of_its_own, refuse_misconfiguration
from botbottle.processes import die_with_supervisor


class Command(BaseCommand):
    help = "Serve both planes in this process, on listeners of its own or those handed down by 'up'."

    requires_system_checks: list[str] = []  # run in handle: one sentence instead of a list

    def handle(self, *args: Any, **options: Any) -> None:
        die_with_supervisor()
        refuse_misconfiguration()
        inherited = listeners.inherited()
        if inherited is not None:
            _serve(inherited)
            return
        refuse_a_key_of_its_own()  # not the child of an `up`: it is one of a team's machines
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
