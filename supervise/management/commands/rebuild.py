"""manage.py rebuild: carries out one queued rebuild. bot-bottle starts it itself."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from supervise.bottles import rebuild
from supervise.cli.base import OperatorCommand
from supervise.models import Rebuild


class Command(OperatorCommand):
    help = "Carry out a queued rebuild of a bottle's image. bot-bottle starts this itself."

    def add_own_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("rebuild", type=int, help="its number")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        number = options["rebuild"]
        try:
            rebuild.perform(number)
        except Rebuild.DoesNotExist as error:
            raise CommandError(f"There is no rebuild {number}.") from error
        done = Rebuild.objects.select_related("bottle").get(pk=number)
        return {
            "rebuild": number,
            "slug": done.bottle.slug,
            "phase": done.phase,
            "image": done.image,
            "problem": done.problem,
            "ended_at": done.ended_at,
        }

    def show(self, options: dict[str, Any], result: dict[str, Any]) -> None:
        self.stdout.write(f"{result['slug']}: {result['phase']}")

    def problem(self, result: dict[str, Any]) -> str | None:
        return str(result["problem"]) if result["phase"] == Rebuild.Phase.FAILED else None
