"""Named actors and the real running server, shared by all tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.contrib.auth.models import Permission, User

from botbottle.models import Bottle
from supervise import bottles
from tests.servers import RunningServer, running_postgres, running_redis, running_server


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
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_postgres(Path(tmp_path_factory.mktemp("postgres")) / "pg") as url:
        yield url


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_redis(Path(tmp_path_factory.mktemp("redis")) / "r") as url:
        yield url
