"""manage.py verify_audit"""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from supervise import audit
from supervise.cli import OperatorCommand


class Command(OperatorCommand):
    help = "Check the audit record's hash chain. Exit code 1 when it does not hold."

    def add_own_arguments(self, parser: CommandParser) -> None:
        pass

    def run(self, options: dict[str, Any]) -> Any:
        intact, broken = audit.verify()
        if broken is not None and not options["json"]:
            raise CommandError(f"{intact} rows hold; then {broken.problem}.")
        return {"ok": broken is None, "rows": intact, "problem": broken.problem if broken else None}

    def show(self, options: dict[str, Any], result: Any) -> None:
        self.stdout.write(f"The audit record holds: {result['rows']} rows.")
