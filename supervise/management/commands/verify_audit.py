"""manage.py verify_audit"""

from __future__ import annotations

from typing import Any

from supervise import audit
from supervise.cli import OperatorCommand


class Command(OperatorCommand):
    help = "Check the audit record's hash chain. Exit code 1 when it does not hold."

    def run(self, options: dict[str, Any]) -> Any:
        intact, broken = audit.verify()
        return {"ok": broken is None, "rows": intact, "problem": broken.problem if broken else None}

    def show(self, options: dict[str, Any], result: Any) -> None:
        if result["ok"]:
            self.stdout.write(f"The audit record holds. Rows checked: {result['rows']}.")

    def problem(self, result: Any) -> str | None:
        if result["ok"]:
            return None
        return f"The audit record does not hold: after {result['rows']} good rows, {result['problem']}."
