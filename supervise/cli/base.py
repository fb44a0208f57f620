"""The base of all management commands: subcommands, --json, and errors as one sentence with exit code 1."""

from __future__ import annotations

import argparse
import getpass
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.core.serializers.json import DjangoJSONEncoder
from django.db import OperationalError, ProgrammingError

from botbottle.core.sanitize import escape_html_json, make_visible
from botbottle.web import listeners
from supervise.diffs import line_diff
from supervise.errors import AlreadyDecided, SuperviseError
from supervise.proposals.kind import Preview

ALL_ROWS = 10**6
JSON_HELP = "print one JSON value for scripts"


def add_json(parser: CommandParser, help_text: str = JSON_HELP, **more: Any) -> None:
    """Add the option that every command has."""
    parser.add_argument("--json", action="store_true", help=help_text, **more)


def json_line(value: Any) -> str:
    return escape_html_json(json.dumps(value, cls=DjangoJSONEncoder))


def addresses(opened: list[listeners.Listener]) -> dict[str, str]:
    """The addresses of the console and of the agents' endpoint on these listeners."""
    ports = {listener.plane.value: listener.port for listener in opened}
    agents = next(iter(settings.SUPERVISE_HOSTS), settings.SUPERVISE_BIND)
    return {
        "console": f"{listeners.url(settings.CONSOLE_BIND, ports['operator'])}/",
        "agents": f"{listeners.url(agents, ports['agent'])}/mcp",
    }


def address_lines(found: dict[str, str], *, as_json: bool) -> str:
    return json_line(found) if as_json else "\n".join(f"{what:<8} {where}" for what, where in found.items())


def print_addresses(command: BaseCommand, found: dict[str, str], *, as_json: bool) -> None:
    command.stdout.write(address_lines(found, as_json=as_json))
    command.stdout.flush()  # the output may be a pipe


class OperatorCommand(BaseCommand):
    """A command whose `run` returns what --json prints, and whose `show` prints it for people.

    `run` returns None if it has written its output itself.
    """

    requires_system_checks: list[str] = []  # `up` and `web` run them; these commands only use the database
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        add_json(parser)
        self.add_own_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            result = self.run(options)
        except SuperviseError as error:
            if options["json"]:
                self.write_json(_as_json(error))
            raise CommandError(error.message) from error
        except (OperationalError, ProgrammingError) as error:
            raise CommandError(f"The database is not ready ({error}). 'make up' prepares it.") from error
        if result is None:
            return
        if options["json"]:
            self.write_json(result)
        else:
            self.show(options, result)
        problem = self.problem(result)
        if problem:
            raise CommandError(problem)

    def add_own_arguments(self, parser: CommandParser) -> None:
        """Override to add verbs and options."""

    def run(self, options: dict[str, Any]) -> Any:
        raise NotImplementedError

    def show(self, options: dict[str, Any], result: Any) -> None:
        raise NotImplementedError

    def problem(self, result: Any) -> str | None:
        """What a finished command found wrong, if anything: printed as an error, with exit code 1."""
        return None

    def write_json(self, value: Any) -> None:
        self.stdout.write(json_line(value))
        self.stdout.flush()


class Verbs:
    """The subcommands of a command. Each accepts --json too, before or after its other arguments."""

    def __init__(self, parser: CommandParser, *names: str) -> None:
        self._verbs = parser.add_subparsers(dest="verb", required=True, metavar="|".join(names))

    def add(self, name: str, help_text: str) -> CommandParser:
        parser: CommandParser = self._verbs.add_parser(name, help=help_text)
        # SUPPRESS: a default here would overwrite a --json before the verb.
        add_json(parser, default=argparse.SUPPRESS)
        return parser


def local_author() -> str:
    """The name of the local account. Anybody who can run manage.py owns the database."""
    try:
        return f"{getpass.getuser()} (command line)"
    except (KeyError, OSError):
        return "command line"


def named_user(username: str) -> User:
    user = User.objects.filter(username=username, is_active=True).first()
    if user is None:
        raise CommandError(f"There is no active operator {username!r}.")
    return user


def acting_operator(username: str | None) -> User:
    """The operator that a command decides as: the named one, else the only active superuser."""
    if username:
        return named_user(username)
    superusers = list(User.objects.filter(is_superuser=True, is_active=True)[:2])
    if len(superusers) != 1:
        raise CommandError("Say which operator decides: --as USERNAME.")
    return superusers[0]


def review_lines(review: Preview) -> Iterator[str]:
    """What a change would do: in sentences, then line by line. The text is safe for a terminal."""
    parts = (("effect", review.effects), ("warning", review.warnings), ("note", review.notes))
    for title, sentences in parts:
        for sentence in sentences:
            yield f"{title:14} {make_visible(sentence)}"
    for row in line_diff(review.before, review.after, most_rows=ALL_ROWS).rows:
        rest = f" (and {row.hidden} more)" if row.hidden else ""
        yield f"{row.kind.mark or ' '} {make_visible(row.text)}{rest}"


def read_payload(source: str, what: str) -> dict[str, Any]:
    """Read a JSON object with the keys of `what` from a file or, as '-', from standard input."""
    try:
        payload = json.loads(sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CommandError(f"The payload could not be read: {error}.") from error
    if not isinstance(payload, dict) or not payload:
        raise CommandError(f"The payload must be a JSON object with the keys of {what}.")
    return payload


def _as_json(error: SuperviseError) -> dict[str, str]:
    facts = error.facts if isinstance(error, AlreadyDecided) else {}
    return {"error": error.code, "message": error.message, **facts}
