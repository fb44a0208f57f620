"""manage.py verify_audit"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandParser

from supervise import audit_check
from supervise.cli.base import OperatorCommand


class Command(OperatorCommand):
    help = (
        "Check the audit record's hash chain, and the decisions against it. The last intact row is saved in "
        "BOTTLE_HOME/audit_anchor.json. Exit code 1 if a row is broken."
    )

    def add_own_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--continue",
            action="store_true",
            dest="go_on",
            help="check only what was appended since the last check that found no fault",
        )

    def run(self, options: dict[str, Any]) -> Any:
        known = audit_check.saved_anchor()
        after = known if options["go_on"] else audit_check.START
        intact, broken = audit_check.verify(after, known=known)
        if broken is None:
            self._keep(intact)
        return {
            "ok": broken is None,
            "rows": intact.seq,
            "continued_after": after.seq,
            "anchor": asdict(intact),
            "problem": broken.problem if broken else None,
        }

    def _keep(self, intact: audit_check.Anchor) -> None:
        try:
            audit_check.save_anchor(intact)
        except OSError as error:  # the check itself needs no disk space
            why = error.strerror or error
            self.stderr.write(
                f"The anchor was not saved ({why}): the next --continue checks these rows again."
            )

    def show(self, options: dict[str, Any], result: Any) -> None:
        if result["ok"]:
            checked = result["rows"] - result["continued_after"]
            self.stdout.write(f"The audit record is intact. Rows checked: {checked}.")
            self.stdout.write(f"It ends with row {result['rows']}, hash {result['anchor']['hash']}.")

    def problem(self, result: Any) -> str | None:
        if result["ok"]:
            return None
        return f"The audit record is broken: after {result['rows']} good rows, {result['problem']}."
