"""The second half of `manage.py up`: a small process that keeps the others running.

It imports no Django, so that what only the first half needs does not take memory for as long as we run.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

from botbottle.core.processes import Child, answers_health, run_until_stopped
from botbottle.database.holder import keep_open
from botbottle.web import listeners
from botbottle.web.listeners import Listener
from egress.tables.proxy_client import ProxyClient, ProxyDown

PREPARED = "BOTTLE_PREPARED"


@dataclass(frozen=True, slots=True)
class Plan:
    """The results of the first half. They are passed in the environment, so they include no secret."""

    home: str
    database: str  # SQLite's file; empty: the database is elsewhere
    program: list[str]  # how to run manage.py
    announcement: str  # printed once everything runs
    web_workers: int
    egress_processes: int  # 0: no proxy runs here
    egress_stop_seconds: float

    def children(self, opened: list[Listener]) -> list[Child]:
        inherited, descriptors = listeners.inheritable(opened)
        web_serves = partial(answers_health, *opened[0].reachable_at)
        children = [
            Child(f"web-{number}", [*self.program, "web"], inherited, descriptors, serves=web_serves)
            for number in range(1, self.web_workers + 1)
        ]
        if self.egress_processes:
            command = [*self.program, "egress"]
            patience = self.egress_stop_seconds
            children.append(
                Child("egress", command, {}, [], serves=self._proxy_serves, stop_seconds=patience)
            )
        return children

    def _proxy_serves(self) -> bool:
        try:
            return not ProxyClient(Path(self.home) / "run", self.egress_processes).status()["stopping"]
        except ProxyDown:
            return False


def take_over(plan: Plan, opened: list[Listener]) -> NoReturn:
    """Replace this process by the supervisor; it keeps its id, output and listeners."""
    inherited, descriptors = listeners.inheritable(opened)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, True)
    sys.stdout.flush()
    sys.stderr.flush()
    environment = {**os.environ, **inherited, PREPARED: json.dumps(asdict(plan))}
    os.execve(plan.program[0], [*plan.program, *sys.argv[1:]], environment)  # noqa: S606 - our own program


def main() -> int:
    """Keep everything running until SIGTERM or SIGINT. Raises BadSetting when it does not start."""
    plan = Plan(**json.loads(os.environ.pop(PREPARED)))
    opened = listeners.inherited()
    assert opened is not None  # noqa: S101 - handed down together with the plan
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with keep_open(Path(plan.database)), listeners.published(Path(plan.home), opened):
        run_until_stopped(plan.children(opened), ready=partial(_announce, plan.announcement))
    return 0


def _announce(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()  # the starter may read a pipe
