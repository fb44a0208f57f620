"""What all our management commands share: --json, and domain errors as one sentence with exit code 1."""

from __future__ import annotations

import getpass
import json
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError, CommandParser

from .errors import SuperviseError


class OperatorCommand(BaseCommand):
    """Subclasses return from `run` what --json prints; `show` prints it for people."""

    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="print one JSON value for scripts")
        self.add_own_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            result = self.run(options)
        except SuperviseError as error:
            raise CommandError(error.message) from error
        if options["json"]:
            self.stdout.write(json.dumps(result))
        else:
            self.show(options, result)

    def add_own_arguments(self, parser: CommandParser) -> None:
        raise NotImplementedError

    def run(self, options: dict[str, Any]) -> Any:
        raise NotImplementedError

    def show(self, options: dict[str, Any], result: Any) -> None:
        raise NotImplementedError


def local_author() -> str:
    """Whoever can run manage.py owns the database; the record says which account that was."""
    try:
        return f"{getpass.getuser()} (command line)"
    except (KeyError, OSError):
        return "command line"


def acting_operator(username: str | None) -> User:
    """The operator a command decides as: the one named, else the only active superuser."""
    if username:
        user = User.objects.filter(username=username, is_active=True).first()
        if user is None:
            raise CommandError(f"There is no active operator {username!r}.")
        return user
    superusers = list(User.objects.filter(is_superuser=True, is_active=True)[:2])
    if len(superusers) != 1:
        raise CommandError("Say who decides: --as USERNAME.")
    return superusers[0]
