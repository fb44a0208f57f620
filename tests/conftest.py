"""Named actors and the real running server, shared by all tests."""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hypothesis
import pytest
from asgiref.sync import SyncToAsync
from django.contrib.auth.models import Permission, User
from django.db import connections
from django.test import TransactionTestCase

from botbottle.models import Bottle
from supervise.bottles import image_drift
from supervise.bottles import records as bottles
from tests.support.database_reset import DatabaseReset
from tests.support.databases import running_postgres, running_redis
from tests.support.leftovers import leftovers
from tests.support.requirements import MISSING
from tests.support.server import RunningServer, running_server
from tests.support.shared_state import SharedState
from tests.support.strategies import examples

# Machines are busy: how long an example takes says nothing about what it shows.
hypothesis.settings.register_profile(
    "steady",
    deadline=None,
    max_examples=examples(50),
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("steady")

# Where the database itself matters: locks, commits, order, concurrent writers and queries of many rows.
ON_BOTH_DATABASES = (
    "tests/supervise/waiting/",
    "tests/supervise/api/test_deciding.py",
    "tests/supervise/api/test_reading.py",
    "tests/supervise/commands/test_proposals.py",
    "tests/egress/control/test_record_import.py",
    "tests/egress/control/test_publishing.py",
    "tests/supervise/proposals/test_apply.py",
    "tests/supervise/test_audit.py",
    "tests/supervise/bottles/test_records.py",
    "tests/supervise/test_background.py",
    "tests/supervise/proposals/test_decisions.py",
    "tests/supervise/test_events.py",
    "tests/supervise/proposals/test_exactly_once.py",
    "tests/supervise/proposals/test_submit.py",
    "tests/supervise/access/test_login.py",
    "tests/supervise/test_migrations.py",
    "tests/supervise/proposals/test_quorum.py",
    "tests/supervise/proposals/test_snooze.py",
    "tests/egress/control/test_versions.py",
    "tests/supervise/webhooks/test_sender.py",
)

# These take longest, in this order.
LONGEST = (
    "tests/processes/test_capability.py",
    "tests/browser/test_every_page.py",
    "tests/browser/test_decide.py",
    "tests/processes/test_three_workers.py",
    "tests/botbottle/mcp_servers/test_local.py",
    "tests/processes/test_bottle_life.py",
    "tests/browser/",
    "tests/botbottle/backends/docker/",
    "tests/botbottle/mcp_servers/",
    "tests/processes/",
    "tests/bottles/",
    "tests/clients/",
    "tests/tools/",
)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The fast loop reads no file that has nothing for it."""
    asked_for = config.getoption("markexpr")
    if not asked_for.startswith("not ") or collection_path.suffix != ".py":
        return None
    marks = " ".join(re.findall(r"^pytestmark = .*", collection_path.read_text(), re.MULTILINE))
    unwanted = set(re.findall(r"\w+", asked_for)) - {"not", "or"}
    return True if unwanted & set(re.findall(r"pytest\.mark\.(\w+)", marks)) else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """The longest files begin first, so that no worker is busy with one when the others are done."""
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker("fuzz")
    yield
    items.sort(key=_place)  # after pytest-django, which puts what has no database last


def _place(item: pytest.Item) -> int:
    """Those with a database stay as pytest-django has them: the ones that empty it come last."""
    if "db" in getattr(item, "fixturenames", ()) or item.get_closest_marker("django_db"):
        return len(LONGEST)
    for place, beginning in enumerate(LONGEST):
        if item.nodeid.startswith(beginning):
            return place
    return len(LONGEST)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getoption("dist") != "loadfile":
        return None
    from tests.support.schedule import ScheduleByGroup

    return ScheduleByGroup(config, log)


def pytest_collection_finish() -> None:
    """Thousands of collected items live until the end: the garbage collector need not visit them again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 50)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line for each real part that this machine does not have."""
    reasons = Counter(report.longrepr[2] for report in terminalreporter.getreports("skipped"))
    for reason, tests in sorted(reasons.items()):
        if MISSING in reason:
            terminalreporter.write_line(f"Left out {tests} tests: {reason.removeprefix('Skipped: ')}")


RESET = DatabaseReset()


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """A test that commits leaves an empty database, but for what migrations put there."""
    TransactionTestCase._fixture_teardown = lambda case: RESET()
    with django_db_blocker.unblock():
        RESET.remember()
    yield
    # The thread of asynchronous tests has a connection of its own.
    SyncToAsync.single_thread_executor.submit(connections.close_all).result()


@pytest.fixture(scope="session")
def shared_state(
    django_db_setup: None, django_db_blocker: Any, postgres: str, redis: str, worker_id: str
) -> SharedState:
    with django_db_blocker.unblock():
        state = SharedState(postgres, redis, worker_id)
        with state.in_use():
            RESET.remember()
        return state


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Each worker checks at its end that nothing of its tests is left. All other fixtures end before."""
    yield
    assert leftovers(tmp_path_factory.getbasetemp()) == []


@pytest.fixture(scope="session", autouse=True)
def database(nothing_left_behind: None, request: pytest.FixtureRequest) -> Iterator[None]:
    """SQLite and memory, or PostgreSQL and Redis: see `pytest_generate_tests`."""
    if getattr(request, "param", "sqlite") == "sqlite":
        yield
        return
    state: SharedState = request.getfixturevalue("shared_state")
    with request.getfixturevalue("django_db_blocker").unblock():
        in_use = state.in_use()
        in_use.__enter__()
    yield
    with request.getfixturevalue("django_db_blocker").unblock():
        in_use.__exit__(None, None, None)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Deciding, waiting and publishing hold on both databases: each test that uses one runs on each."""
    on_both = metafunc.definition.nodeid.startswith(ON_BOTH_DATABASES)
    if on_both and uses_database(metafunc.definition, metafunc.fixturenames):
        both = ["sqlite", pytest.param("postgres", marks=pytest.mark.services)]
        metafunc.parametrize("database", both, indirect=True, scope="session")


def uses_database(item: Any, fixtures: Iterable[str]) -> bool:
    return not {"db", "transactional_db"}.isdisjoint(fixtures) or bool(item.get_closest_marker("django_db"))


@pytest.fixture(autouse=True)
def engine_unasked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an engine said to one test counts for no other; most tests have none, whatever this host has."""
    monkeypatch.setattr(image_drift, "_engine", image_drift._Engine())
    if "process" not in request.keywords:
        monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")


@pytest.fixture
def operator(db: None) -> User:
    user = User.objects.create_user("olivia", password="correct-horse-battery", is_staff=True)
    for codename in ("decide_proposal", "view_proposal", "view_decision", "view_bottle"):
        user.user_permissions.add(Permission.objects.get(codename=codename))
    return User.objects.get(pk=user.pk)


@pytest.fixture
def second_operator(operator: User) -> User:
    user = User.objects.create_user("otto", password="correct-horse-battery", is_staff=True)
    user.user_permissions.set(operator.user_permissions.all())
    return User.objects.get(pk=user.pk)


@pytest.fixture
def viewer(db: None) -> User:
    user = User.objects.create_user("vera", password="correct-horse-battery", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_proposal"))
    return User.objects.get(pk=user.pk)


@pytest.fixture
def agent_a(db: None) -> Bottle:
    return bottles.create("agent-a", author="tests").bottle


@pytest.fixture
def agent_b(db: None) -> Bottle:
    return bottles.create("agent-b", author="tests").bottle


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One real `manage.py up` for all tests that only need some server."""
    home = Path(tmp_path_factory.mktemp("home"))
    with running_server(home, SUPERVISE_MAX_PENDING="100000", SUPERVISE_MAX_PER_MINUTE="1000000") as running:
        yield running


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    # Not under pytest's directory: every pytest that starts closes it again to the server's own account.
    with TemporaryDirectory(prefix="bottle-") as directory, running_postgres(Path(directory) / "pg") as url:
        yield url


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_redis(Path(tmp_path_factory.mktemp("redis")) / "r") as url:
        yield url
