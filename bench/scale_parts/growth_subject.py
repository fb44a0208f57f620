"""One home of `bench/scale_parts/growth.py`: fills it, starts its server, and does what it is asked.

Prints the names of what can be asked as one line of JSON; then reads a name a line, and prints the
milliseconds.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

import django
import httpx
import psycopg

django.setup()

from django.contrib.auth.models import User  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import connection  # noqa: E402
from django.test import override_settings  # noqa: E402

from bench.scale_parts.growth import MEMORY  # noqa: E402
from bench.scale_parts.history import History  # noqa: E402
from egress.policy.asks import parse_egress_ask  # noqa: E402
from supervise import background  # noqa: E402
from supervise.access import api_keys  # noqa: E402
from supervise.bottles import records as bottles  # noqa: E402
from supervise.models import Decision, Proposal  # noqa: E402
from supervise.proposals import decisions, queries, waiting  # noqa: E402
from supervise.proposals.submit import submit_proposal  # noqa: E402
from tests.support.server import RunningServer, running_server  # noqa: E402
from tests.support.site import command_of, post_form  # noqa: E402

BOTTLES = 12
PENDING = 24
THREADS = 16
PASSWORD = "bench-bench-bench"
BUSY = ("/", "/history/", "/bottles/", "/admin/supervise/proposal/", "/queue/state")
Action = Callable[[], object]


class Subject:
    """A home with bottles, an operator and a history."""

    def __init__(self, home: Path, size: int) -> None:
        self.home = home
        call_command("migrate", verbosity=0, interactive=False)
        self._operator = User.objects.create_superuser("bench", password=PASSWORD)
        self._key = api_keys.create(self._operator, "bench")
        self._numbers = itertools.count()
        self._filed: list[Proposal] = []
        with override_settings(EGRESS_PROXY=False):  # there is none yet
            made = [bottles.create(f"bottle-{number}", author="bench") for number in range(BOTTLES)]
            self._bottles, self._token = [each.bottle for each in made], made[0].token
            self._pending = [self._file() for _ in range(PENDING)]
            History(self._bottles).grow_to(size)
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("VACUUM ANALYZE")  # as autovacuum does while a database grows

    def actions(self, server: RunningServer) -> dict[str, Action]:
        self._console = self._signed_in(server)
        self._newest = waiting._newest_seq.func()
        return {
            **self._pages(),
            **self._calls(),
            **self._contexts(server),
            # In this process: over HTTP, a filing waits for its decision.
            "filing": lambda: self._filed.append(self._file()),
            "decision, until it is live": self._decide,
            "sweep": lambda: waiting._after.func(self._newest),
            "maintenance round": background.run_maintenance,
        }

    def memory(self, server: RunningServer) -> float:
        """Of the web process, in MB, after all its threads had something to do."""
        with ThreadPoolExecutor(THREADS) as pool:
            for one in [pool.submit(self._get(page)) for page in BUSY * THREADS]:
                one.result()
        up = server.process.pid
        children = map(int, Path(f"/proc/{up}/task/{up}/children").read_text().split())
        (web,) = (pid for pid in children if command_of(pid)[-1:] == ["web"])
        return int(Path(f"/proc/{web}/status").read_text().partition("VmRSS:")[2].split()[0]) / 1024

    def _pages(self) -> dict[str, Action]:
        moment = (self._oldest.created_at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        pages = {
            "queue": "/",
            "queue, state of an old page": "/queue/state?since=0",
            "proposal": f"/proposals/{self._pending[0].pk}/",
            "history": "/history/",
            "history, near the end": f"/history/?before={moment}-{self._oldest.pk}",
            "bottles": "/bottles/",
            "bottle": "/bottles/bottle-0/",
            "bottle, oldest versions": "/bottles/bottle-0/?page=999999999",
            "admin: proposals": "/admin/supervise/proposal/",
            "admin: expired proposals": "/admin/supervise/proposal/?status__exact=expired",
            "admin: decisions": "/admin/supervise/decision/",
            "admin: audit": "/admin/supervise/auditevent/",
            "admin: table versions": "/admin/egress/routetableversion/",
        }
        return {what: self._get(path) for what, path in pages.items()}

    def _calls(self) -> dict[str, Action]:
        place = base64.b64encode(urlencode({"p": str(self._oldest.created_at)}).encode()).decode()
        calls = {
            "API: proposals": "proposals/",
            "API: pending": "proposals/?status=pending",
            "API: history": "history/",
            "API: history of a bottle": "history/?bottle=bottle-1",
            "API: history, near the end": f"history/?{urlencode({'cursor': place})}",
            "API: bottles": "bottles/",
        }
        key = {"Authorization": f"Bearer {self._key}"}
        return {what: self._get(f"/api/{path}", key) for what, path in calls.items()}

    def _contexts(self, server: RunningServer) -> dict[str, Action]:
        base, token = server.mcp_url.removesuffix("/mcp"), {"Authorization": f"Bearer {self._token}"}
        return {
            f"session context, {depth}": self._get(f"{base}/session-context?depth={depth}", token)
            for depth in ("minimal", "standard", "deep")
        }

    @property
    def _oldest(self) -> Decision:
        """With a whole page of older ones."""
        return Decision.objects.order_by("created_at", "pk")[60]

    def _get(self, address: str, headers: Mapping[str, str] | None = None) -> Action:
        def get() -> None:
            answer = self._console.get(address, headers=headers)
            if answer.status_code != 200:
                raise SystemExit(f"{address}: {answer.status_code} {answer.text[:500]}")

        return get

    def _signed_in(self, server: RunningServer) -> httpx.Client:
        console = httpx.Client(base_url=server.console_url, trust_env=False, timeout=120)
        answer = post_form(console, "/admin/login/", username="bench", password=PASSWORD, next="/")
        if answer.status_code != 302:
            raise SystemExit(f"signing in failed: {answer.status_code}")
        return console

    def _file(self) -> Proposal:
        number = next(self._numbers)
        asked = parse_egress_ask({"host": f"n{number}.example.com", "methods": ["GET"]})
        bottle = self._bottles[number % BOTTLES]
        return submit_proposal(bottle, "egress-block", asked, "The build needs it.").proposal

    def _decide(self) -> None:
        proposal = self._filed.pop()
        seen = queries.review_of(proposal).seen_digest
        decisions.approve(proposal.pk, actor=self._operator, seen_digest=seen)


def create_database() -> None:
    """On PostgreSQL; SQLite's is a file."""
    url = os.environ.get("DATABASE_URL")
    if url:
        parts = urlsplit(url)
        where = dict(parse_qsl(parts.query))["host"]
        with psycopg.connect(host=where, user="bottle", dbname="postgres", autocommit=True) as server:
            server.execute(f"create database {parts.path.removeprefix('/')}")


def main() -> None:
    home, size = Path(sys.argv[1]), int(sys.argv[2])
    os.umask(0o077)
    create_database()
    subject = Subject(home, size)
    variables = {name: value for name, value in os.environ.items() if name not in {"PATH", "LANG"}}
    with running_server(home, **variables) as server:
        actions = subject.actions(server)
        print(json.dumps(list(actions)), flush=True)
        for line in sys.stdin:
            name = line.rstrip("\n")
            if name == MEMORY:
                print(subject.memory(server), flush=True)
                continue
            begun = time.perf_counter()
            actions[name]()
            print((time.perf_counter() - begun) * 1000, flush=True)


if __name__ == "__main__":
    main()
