"""A resident `manage.py shell` of the island's server: an errand costs no start of a process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import dedent
from typing import Any

from tests.support import ROOT
from tests.support.server import RunningServer, stop

RESIDENT = """
import contextlib, io, json, sys, traceback
answers = sys.stdout
for line in sys.stdin:
    errand = json.loads(line)
    names, error = {"given": errand["given"], "answer": None}, ""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(errand["code"], names)
    except BaseException:
        error = traceback.format_exc()
    print(json.dumps({"answer": names["answer"], "error": error}, default=str), file=answers, flush=True)
"""
CREATE = """
import io
from django.core.management import call_command
out = io.StringIO()
call_command("bottle", "create", given["slug"], "--json", stdout=out)
answer = out.getvalue()
"""
DELETE = """
from django.core.management import call_command
call_command("bottle", "delete", given["slug"])
"""


class Errands:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, code: str, **given: Any) -> Any:
        """Runs the code with `given` in reach; what it leaves in `answer` comes back."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps({"code": dedent(code), "given": given}) + "\n")
        self._process.stdin.flush()
        told = json.loads(self._process.stdout.readline())
        assert not told["error"], told["error"]
        return told["answer"]

    def create_bottle(self, slug: str) -> dict[str, str]:
        return dict(json.loads(self.run(CREATE, slug=slug)))

    def delete_bottle(self, slug: str) -> None:
        self.run(DELETE, slug=slug)


@contextmanager
def running_errands(server: RunningServer) -> Iterator[Errands]:
    process = subprocess.Popen(
        [sys.executable, "manage.py", "shell", "--no-imports", "-c", RESIDENT],
        cwd=ROOT, env=server.environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield Errands(process)
    finally:
        stop(process)
        for pipe in (process.stdin, process.stdout):
            if pipe:
                pipe.close()
