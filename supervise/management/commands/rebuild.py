"""manage.py rebuild: the process that carries out one queued rebuild. bot-bottle starts it by itself."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from supervise import rebuilding
from supervise.models import Rebuild


class Command(BaseCommand):
    help = "Carry out a queued rebuild of a bottle's image. bot-bottle starts this by itself."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("rebuild", type=int, help="its number")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            rebuilding.perform(options["rebuild"])
        except Rebuild.DoesNotExist as error:
            raise CommandError(f"There is no rebuild {options['rebuild']}.") from error
