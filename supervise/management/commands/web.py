"""manage.py web: one web worker. `up` starts WEB_WORKERS of them; a team may start its own."""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from botbottle.checks import refuse_misconfiguration, require_shared_secret_key
from botbottle.core import disk_space
from botbottle.core.processes import die_with_supervisor
from botbottle.web import listeners
from supervise.cli.base import add_json, addresses, print_addresses


class Command(BaseCommand):
    help = "Serve both planes in this process, on listeners of its own or those inherited from 'up'."

    requires_system_checks: list[str] = []  # run in `handle`: one sentence instead of a list

    def add_arguments(self, parser: CommandParser) -> None:
        add_json(parser, "say where it is as one line of JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        die_with_supervisor()
        refuse_misconfiguration()
        inherited = listeners.inherited()
        if inherited is not None:
            self._serve(
                inherited, as_json=options["json"], quietly=not options["json"]
            )  # `up` prints the addresses
        else:
            self._serve_alone(as_json=options["json"])
        _end()

    def _serve_alone(self, *, as_json: bool) -> None:
        disk_space.refuse_a_full_disk(settings.BOTTLE_HOME)
        require_shared_secret_key()  # not a child of `up`, but one of a team's machines
        opened = listeners.open_all(
            settings.BOTTLE_HOME,
            agent=(settings.SUPERVISE_BIND, settings.SUPERVISE_PORT),
            console=(settings.CONSOLE_BIND, settings.CONSOLE_PORT),
        )
        with listeners.published(settings.BOTTLE_HOME, opened):
            self._serve(opened, as_json=as_json)

    def _serve(self, opened: list[listeners.Listener], *, as_json: bool, quietly: bool = False) -> None:
        from botbottle.asgi import application  # noqa: PLC0415 - these only in a process that serves
        from botbottle.web.server import serve  # noqa: PLC0415 - installs Twisted's reactor
        from supervise.process_work import ProcessWork  # noqa: PLC0415

        found = addresses(opened)  # before serving, which takes over the sockets

        def ready() -> None:
            if not quietly:
                print_addresses(self, found, as_json=as_json)

        serve(application, opened, ProcessWork(), ready=ready)


def _end() -> NoReturn:
    """End at once: the interpreter's own end would wait for threads that hang, for example in the database.

    What they have committed stands, and the rest is rolled back.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
