"""A process in the place of the one that builds an image: it writes the log and moves the phase as told."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import ROOT
from tests.support.server import RunningServer

PROGRAM = """
import json, sys
from django.contrib.auth.models import User
from django.utils import timezone
from botbottle.models import Bottle
from supervise.bottles import images
from supervise.proposals import decisions
from supervise.bottles.build_log import Log
from supervise.models import Rebuild
from tests.support.proposals import ask_image, seen

bottle = Bottle.objects.get(slug=sys.stdin.readline().strip())
proposal = ask_image(bottle)
operator = User.objects.get(username="operator")
decision = decisions.approve(proposal.pk, actor=operator, seen_digest=seen(proposal))
rebuild = Rebuild.objects.create(
    bottle=bottle, decision=decision, author="operator", dockerfile="FROM debian:12\\n", digest="0" * 64
)
images.enter(rebuild, "building", build_started_at=timezone.now())
log = Log(images.log_path(rebuild))
print(json.dumps([rebuild.pk, str(proposal.pk), str(images.log_path(rebuild))]), flush=True)
for line in sys.stdin:
    say, phase = json.loads(line)
    for each in say:
        log(each)
    if phase:
        images.enter(rebuild, phase, ended_at=timezone.now())
    print("done", flush=True)
"""


class Building:
    def __init__(self, process: subprocess.Popen[str], slug: str) -> None:
        self._process = process
        self._tell(slug)
        rebuild, self.proposal, path = json.loads(self._answer())
        self.rebuild, self.path = int(rebuild), Path(path)

    def say(self, *lines: str, phase: str = "") -> None:
        """Returns when it is in the log."""
        self._tell(json.dumps([lines, phase]))
        assert self._answer() == "done\n"

    def _tell(self, line: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _answer(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline()


@contextmanager
def building(server: RunningServer, slug: str) -> Iterator[Building]:
    process = subprocess.Popen(
        [sys.executable, "manage.py", "shell", "--no-imports", "-c", PROGRAM],
        cwd=ROOT, env=server.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        try:
            yield Building(process, slug)
        finally:
            process.kill()
