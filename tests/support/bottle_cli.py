"""The command line of a running bot-bottle, as far as it is about bottles, and what its database says."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import ROOT
from tests.support.server import RunningServer

# For a command in a bottle: asks its agent plane.
HEALTH = (
    "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:9100/health').read().decode())"
)

WHOLE = ("run", "attach")  # a process of their own, as a user has it


@dataclass
class Ran:
    code: int
    output: str
    error: str


@dataclass
class Bottles:
    """A running bot-bottle, and its command line."""

    server: RunningServer

    @property
    def environment(self) -> dict[str, str]:
        return self.server.environment

    def command(self, verb: str, *words: str, **variables: str) -> Ran:
        if verb not in WHOLE and not variables:
            warm = self.server.command("bottle", verb, *words)
            return Ran(warm.returncode, warm.stdout, warm.stderr)
        ran = subprocess.run(
            [sys.executable, "manage.py", "bottle", verb, *words], cwd=ROOT, stdin=subprocess.DEVNULL,
            env=self.environment | variables, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        return Ran(ran.returncode, ran.stdout, ran.stderr)

    def ok(self, verb: str, *words: str) -> str:
        ran = self.command(verb, *words)
        assert ran.code == 0, ran.error
        return ran.output

    def manifest(self, slug: str, text: str = "backend: local\n") -> str:
        directory = self.server.home / "bottles"
        directory.mkdir(exist_ok=True)
        (directory / f"{slug}.yaml").write_text(text)
        return slug

    def started(self, slug: str, *command: str) -> str:
        self.manifest(slug)
        assert f"{slug} is running" in self.ok("start", slug, *(["--", *command] if command else []))
        return slug

    def ps(self, slug: str) -> dict[str, Any]:
        lines = json.loads(self.ok("ps", "--json"))
        return next((line for line in lines if line["slug"] == slug), {"state": "unknown"})

    def row(self, slug: str) -> dict[str, Any]:
        """As the database says without anybody asking the sandbox."""
        return self.rows("select * from botbottle_bottle where slug = ? and state != 'deleted'", slug)[0]

    def rows(self, query: str, *values: str) -> list[dict[str, Any]]:
        with sqlite3.connect(self.server.home / "bot-bottle.sqlite3", timeout=30) as database:
            database.row_factory = sqlite3.Row
            found = [dict(row) for row in database.execute(query, values)]
        database.close()
        return found

    def audited(self, slug: str) -> list[tuple[str, str]]:
        found = self.rows("select * from supervise_auditevent where bottle_slug = ? order by seq", slug)
        return [(row["action"], row["actor_name"]) for row in found]

    def supervisor(self, slug: str) -> int:
        """The process on the host that holds the bottle."""
        state = json.loads((self.server.home / "bottles" / slug / "run" / "state.json").read_text())
        return int(state["pid"])


def family(pid: int) -> list[int]:
    """The process and all that came from it."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            found += [int(child) for child in task.read_text().split()]
    return found


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
