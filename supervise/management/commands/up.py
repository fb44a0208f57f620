"""manage.py up: prepare what is missing, start everything, stop everything with one Ctrl-C."""

from __future__ import annotations

import secrets
import sys
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import BaseCommand

from botbottle import listeners
from botbottle.checks import refuse_misconfiguration
from botbottle.home import write_private
from botbottle.processes import Child, run_until_stopped


class Command(BaseCommand):
    help = "Start bot-bottle: the console, the agents' endpoint and what they need."
    requires_system_checks: list[str] = []  # run in handle: one sentence instead of a list

    def handle(self, *args: Any, **options: Any) -> None:
        refuse_misconfiguration()
        opened = listeners.open_all(
            settings.BOTTLE_HOME,
            agent=(settings.SUPERVISE_BIND, settings.SUPERVISE_PORT),
            console=(settings.CONSOLE_BIND, settings.CONSOLE_PORT),
        )
        call_command("migrate", verbosity=0, interactive=False)
        self._first_operator()
        with listeners.published(settings.BOTTLE_HOME, opened):
            run_until_stopped(_children(opened), ready=lambda: self._tell(opened))

    def _first_operator(self) -> None:
        if User.objects.exists():
            return
        password = secrets.token_urlsafe(15)
        User.objects.create_superuser("operator", password=password)
        note = settings.BOTTLE_HOME / "operator.txt"
        write_private(note, f"username: operator\npassword: {password}\n")
        self.stdout.write(f"first operator: name 'operator', password '{password}' (kept in {note})")

    def _tell(self, opened: list[listeners.Listener]) -> None:
        ports = {listener.plane.value: listener.port for listener in opened}
        self.stdout.write(
            f"console  http://{settings.CONSOLE_BIND}:{ports['operator']}/\n"
            f"agents   http://{settings.SUPERVISE_BIND}:{ports['agent']}/mcp\n"
            f"bottle   {_python()} manage.py bottle create demo"
        )
        self.stdout.flush()


def _children(opened: list[listeners.Listener]) -> list[Child]:
    environment, descriptors = listeners.hand_down(opened)
    command = [sys.executable, sys.argv[0], "web"]
    return [
        Child(f"web-{number}", command, environment, descriptors, health=opened[0].reachable_at)
        for number in range(1, settings.WEB_WORKERS + 1)
    ]


def _python() -> str:
    virtual = settings.BASE_DIR / ".venv" / "bin" / "python"
    return ".venv/bin/python" if virtual.exists() else "python"
