"""manage.py up: prepares what is missing, then becomes the supervisor of all other processes."""

from __future__ import annotations

import secrets
import sys
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandParser
from django.db import connection, connections

from botbottle.checks import refuse_misconfiguration, require_shared_secret_key
from botbottle.core import disk_space, environment
from botbottle.core.files import write_private
from botbottle.process_supervisor import Plan, take_over
from botbottle.web import listeners
from egress import secrets as operators_secrets
from egress.tables import homes
from supervise.cli.base import add_json, address_lines, addresses

PATIENCE_BEYOND_REQUESTS = 4.0  # the time that the proxy may take to end after its open requests


class Command(BaseCommand):
    help = "Start bot-bottle: the console, the agents' endpoint and what they need."
    requires_system_checks: list[str] = []  # run in `handle`: one sentence instead of a list

    def add_arguments(self, parser: CommandParser) -> None:
        add_json(parser, "say where it is as one line of JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        refuse_misconfiguration()
        disk_space.refuse_a_full_disk(settings.BOTTLE_HOME)
        opened = listeners.open_all(
            settings.BOTTLE_HOME,
            agent=(settings.SUPERVISE_BIND, settings.SUPERVISE_PORT),
            console=(settings.CONSOLE_BIND, settings.CONSOLE_PORT),
        )
        call_command("migrate", verbosity=0, interactive=False)
        if homes.other_homes():
            require_shared_secret_key()
        self._first_operator(quietly=options["json"])
        self._secrets()
        connections.close_all()
        take_over(plan_for(opened, as_json=options["json"]), opened)

    def _first_operator(self, *, quietly: bool) -> None:
        if User.objects.exists():
            return
        password = secrets.token_urlsafe(15)
        User.objects.create_superuser("operator", password=password)
        note = settings.BOTTLE_HOME / "operator.txt"
        write_private(note, f"username: operator\npassword: {password}\n")
        if not quietly:
            self.stdout.write(f"first operator: name 'operator', password '{password}' (kept in {note})")

    def _secrets(self) -> None:
        for name in operators_secrets.write_all_files():
            self.stderr.write(
                f"The secret {name} was encrypted with another key. Set it again in the admin: routes that"
                " use it fail until then."
            )


def plan_for(opened: list[listeners.Listener], *, as_json: bool) -> Plan:
    found = {**addresses(opened), "bottle": f"{_python()} manage.py bottle create demo"}
    return Plan(
        home=str(settings.BOTTLE_HOME),
        database=str(connection.settings_dict["NAME"]) if connection.vendor == "sqlite" else "",
        program=[sys.executable, str(settings.BASE_DIR / "manage.py")],
        announcement=address_lines(found, as_json=as_json),
        web_workers=settings.WEB_WORKERS,
        egress_processes=settings.EGRESS_PROCESSES if settings.EGRESS_PROXY else 0,
        egress_stop_seconds=environment.seconds("EGRESS_STOP_SECONDS", 10) + PATIENCE_BEYOND_REQUESTS,
    )


def _python() -> str:
    virtual = settings.BASE_DIR / ".venv" / "bin" / "python"
    return ".venv/bin/python" if virtual.exists() else "python"
