"""manage.py up: prepare what is missing, start everything, stop everything with one Ctrl-C."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandParser
from django.db import connections

from botbottle import disk_space, environment, listeners
from botbottle.checks import refuse_a_key_of_its_own, refuse_misconfiguration
from botbottle.held_database import held_open
from botbottle.home import write_private
from botbottle.processes import Child, answers_health, run_until_stopped
from egress import secrets as operators_secrets
from egress import store
from egress.data_plane import DataPlaneDown
from supervise.cli import add_json, addresses, tell_addresses


class Command(BaseCommand):
    help = "Start bot-bottle: the console, the agents' endpoint and what they need."
    requires_system_checks: list[str] = []  # run in handle: one sentence instead of a list

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
        if store.other_homes():
            refuse_a_key_of_its_own()
        self._first_operator(quietly=options["json"])
        self._secrets()
        connections.close_all()
        database = Path(str(settings.DATABASES["default"]["NAME"]))
        with held_open(database), listeners.published(settings.BOTTLE_HOME, opened):
            run_until_stopped(_children(opened), ready=lambda: self._tell(opened, as_json=options["json"]))

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
        for name in operators_secrets.hand_over_all():
            self.stderr.write(
                f"The secret {name} was encrypted with another key. Set it again in the admin: routes that"
                " use it fail until then."
            )

    def _tell(self, opened: list[listeners.Listener], *, as_json: bool) -> None:
        told = {**addresses(opened), "bottle": f"{_python()} manage.py bottle create demo"}
        tell_addresses(self, told, as_json=as_json)


def _children(opened: list[listeners.Listener]) -> list[Child]:
    inherited, descriptors = listeners.hand_down(opened)
    program = [sys.executable, sys.argv[0]]
    children = [
        Child(
            f"web-{number}",
            [*program, "web"],
            inherited,
            descriptors,
            serves=lambda: answers_health(*opened[0].reachable_at),
        )
        for number in range(1, settings.WEB_WORKERS + 1)
    ]
    if settings.EGRESS_PROXY:
        patience = environment.seconds("EGRESS_STOP_SECONDS", 10) + 4  # it lets open requests finish
        children.append(
            Child("egress", [*program, "egress"], {}, [], serves=_egress_answers, stop_seconds=patience)
        )
    return children


def _egress_answers() -> bool:
    try:
        return not store.data_plane().status()["stopping"]
    except DataPlaneDown:
        return False


def _python() -> str:
    virtual = settings.BASE_DIR / ".venv" / "bin" / "python"
    return ".venv/bin/python" if virtual.exists() else "python"
