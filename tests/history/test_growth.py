"""No page, call, filing or decision does more work because more was decided before.

Work is what SQLite does: the number of statements, and the steps of its virtual machine, which are the same
everywhere.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode
from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from bench.scale_parts import history
from bench.scale_parts.history import History
from botbottle.admin import CappedPaginator, HistoryAdmin
from supervise import audit, background  # fmt: skip
from supervise.access import api_keys  # fmt: skip
from supervise.api.views import HistoryPages
from supervise.bottles import records as bottles  # fmt: skip
from supervise.console import bottle_views  # fmt: skip
from supervise.console import views as console
from supervise.mcp.session_context import facts as context  # fmt: skip
from supervise.models import Decision, Proposal
from supervise.proposals import apply, decisions, precedents, waiting  # fmt: skip
from tests.supervise.console.conftest import browser_of
from tests.support.proposals import ask, seen

FEW, MANY = 300, 900
PAGE = 6  # rows: as many as there are of the rarest kind when there are few
AT_MOST = 1.2  # times as many steps
EVERY, SLACK = 10, 30  # steps are counted by tens
Work = dict[str, tuple[int, int]]  # by action: statements and steps

pytestmark = pytest.mark.django_db


class World:
    """Three bottles with a history, some pending proposals, and who looks at them."""

    def __init__(self) -> None:
        made = [bottles.create(f"bottle-{number}", author="tests") for number in range(3)]
        self.bottles = [each.bottle for each in made]
        self.history = History(self.bottles)
        self._pending = [ask(self.bottles[number % 3], f"p{number}.example.com") for number in range(6)]
        self._filed: list[Proposal] = []
        self._warm: set[str] = set()
        self._root = User.objects.create_superuser("root", password="correct-horse-battery")
        self._browser = browser_of(self._root)
        self._key = {"Authorization": f"Bearer {api_keys.create(self._root, 'tests')}"}
        self._token = {"Authorization": f"Bearer {made[0].token}", "Host": "127.0.0.1:9100"}

    def work(self, *names: str) -> Work:
        """Of all actions, or of those that are named."""
        done = {}
        actions = self._actions()
        for name in names or actions:
            action = actions[name]
            if name not in self._warm:
                action()  # what is looked up once and kept
                self._warm.add(name)
            audit._written = None  # the history was not written by this process
            with CaptureQueriesContext(connection) as statements, counted_steps() as steps:
                action()
            done[name] = (len(statements), sum(steps))
        return done

    def _actions(self) -> dict[str, Callable[[], object]]:
        agent, script = Client(plane="agent"), Client()
        return {
            **{path: self._get(self._browser, path) for path in self._pages()},
            **{path: self._get(script, path, self._key) for path in self._calls()},
            **{path: self._get(agent, path, self._token) for path in self._contexts()},
            "filing": lambda: self._filed.append(ask(self.bottles[0], f"{uuid4()}.example.com")),
            "joining": lambda: ask(self.bottles[0], "p0.example.com"),
            "approving": self._approve,
            "sweeping": lambda: waiting._after.func(waiting._newest_seq.func()),
            "maintenance": background.run_maintenance,
        }

    def _pages(self) -> list[str]:
        past = self._past(7)
        moment = (past.created_at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        cursor = f"{moment}-{past.pk}"
        proposals, decided, audited = (
            f"/admin/supervise/{name}/" for name in ("proposal", "decision", "auditevent")
        )
        versions = "/admin/egress/routetableversion/"
        return [
            "/", "/?q=p1", "/queue/state?since=0", "/queue/list", "/refusals/", "/history/",
            f"/history/?before={cursor}", f"/history/?after={cursor}", "/bottles/", "/bottles/bottle-0/",
            "/bottles/bottle-0/?page=9999", f"/proposals/{self._pending[0].pk}/",
            f"/proposals/{past.proposal_id}/", proposals, f"{proposals}?status__exact=expired",
            f"{proposals}?tool__exact=pipelock-block", f"{proposals}?q=nothing",
            f"{proposals}?q=nothing&status__exact=rejected",
            f"{proposals}?q={past.proposal_id}", f"{proposals}?created_at__gte=2099-01-01%2000:00:00%2B00:00",
            decided, f"{decided}?applied__exact=failed", f"{decided}?q=nothing", audited,
            f"{audited}?action=expired", f"{audited}?q=nothing", f"{audited}?q={UUID(int=1)}", versions,
            f"{versions}?q=nothing", "/admin/egress/trafficrecord/",
        ]  # fmt: skip

    def _calls(self) -> list[str]:
        cursor = base64.b64encode(urlencode({"p": str(self._past(7).created_at)}).encode()).decode()
        filters = [
            "", "status=pending", "status=expired", "tool=mcp-tool", "bottle=bottle-1", f"cursor={cursor}",
            "bottle=bottle-1&status=pending", "status=pending&tool=mcp-tool",
        ]  # fmt: skip
        lists = [f"/api/{name}/?{each}" for name in ("proposals", "history") for each in filters]
        return [*lists, "/api/bottles/", "/api/bottles/bottle-1/routes/"]

    @staticmethod
    def _contexts() -> list[str]:
        return [f"/session-context?depth={depth}" for depth in context.Depth]

    @staticmethod
    def _past(number: int) -> Decision:
        return Decision.objects.order_by("created_at")[number]

    def _approve(self) -> None:
        proposal = self._filed.pop()
        decision = decisions.approve(proposal.pk, actor=self._root, seen_digest=seen(proposal))
        apply.publish(decision)

    @staticmethod
    def _get(client: Client, path: str, headers: dict[str, str] | None = None) -> Callable[[], None]:
        def get() -> None:
            answer = client.get(path, headers=headers)
            assert answer.status_code == 200, (path, answer.status_code, answer.content[:500])

        return get


@contextmanager
def counted_steps() -> Iterator[list[int]]:
    steps: list[int] = []
    connection.ensure_connection()
    connection.connection.set_progress_handler(lambda: steps.append(EVERY), EVERY)
    try:
        yield steps
    finally:
        connection.connection.set_progress_handler(None, 0)


@pytest.fixture
def world(settings: Any, monkeypatch: pytest.MonkeyPatch) -> World:
    """Whatever counts, looks or shows only so far has come that far while there are few."""
    settings.SUPERVISE_MAX_PER_MINUTE = 1000
    monkeypatch.setattr(waiting, "close_old_connections", lambda: None)  # the test's is the same one
    monkeypatch.setattr(history, "HOSTS", 5)  # so that each ask was made before
    monkeypatch.setattr(context, "MAX_COUNTED", 5)
    monkeypatch.setattr(context, "MAX_EPISODES", 20)
    monkeypatch.setattr(precedents, "ANSWERS_LOOKED_AT", 20)
    monkeypatch.setattr(CappedPaginator, "most", 2 * PAGE)
    monkeypatch.setattr(HistoryAdmin, "searched", 20)
    monkeypatch.setattr(HistoryAdmin, "list_per_page", PAGE)
    monkeypatch.setattr(HistoryPages, "page_size", PAGE)
    monkeypatch.setattr(console, "HISTORY_PAGE", PAGE)
    monkeypatch.setattr(bottle_views, "VERSIONS_PAGE", PAGE)
    return World()


def grown(few: Work, many: Work) -> dict[str, str]:
    return {
        name: f"{few[name]} -> {many[name]}"
        for name in few
        if many[name][0] != few[name][0] or many[name][1] > AT_MOST * few[name][1] + SLACK
    }


def test_nothing_costs_more_because_more_was_decided(world: World) -> None:
    world.history.grow_to(FEW)
    few = world.work()
    world.history.grow_to(MANY)
    assert grown(few, world.work()) == {}


def test_a_missing_index_would_be_found(world: World) -> None:
    with connection.cursor() as cursor:
        for index in Decision._meta.indexes:
            cursor.execute(f"DROP INDEX {index.name}")
    names = "/history/", "/api/history/?", "/api/history/?bottle=bottle-1", "maintenance"
    world.history.grow_to(FEW)
    few = world.work(*names)
    world.history.grow_to(MANY)
    assert grown(few, world.work(*names)).keys() == set(names)
