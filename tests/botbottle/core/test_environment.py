"""Settings that the environment gives."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from django.db import OperationalError
from django.db.backends.postgresql.base import DatabaseWrapper

from botbottle.core import environment
from botbottle.database.faults import Cause, fault_of


def postgresql(monkeypatch: pytest.MonkeyPatch, url: str) -> dict[str, object]:
    monkeypatch.setenv("DATABASE_URL", url)
    return environment.database("DATABASE_URL", Path("unused"))


def test_a_postgresql_server_that_says_nothing_is_a_fault_within_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(environment, "CONNECT_SECONDS", "2")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        entry = postgresql(monkeypatch, f"postgres://bottle:secret@127.0.0.1:{port}/bottle")
        defaults = {"TIME_ZONE": None, "AUTOCOMMIT": True, "CONN_HEALTH_CHECKS": False, "CONN_MAX_AGE": 0}
        database = DatabaseWrapper(entry | defaults, "silent")
        with pytest.raises(OperationalError) as refused, database.wrap_database_errors:
            database.get_new_connection(database.get_connection_params())
    fault = fault_of(refused.value)
    assert fault is not None and (fault.cause, fault.is_lost) == (Cause.UNREACHABLE, False)


def test_a_url_may_name_another_time_to_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    base = "postgres://bottle@db/bottle"
    assert postgresql(monkeypatch, base)["OPTIONS"] == {"connect_timeout": "5"}
    longer = postgresql(monkeypatch, f"{base}?connect_timeout=60&sslmode=require")
    assert longer["OPTIONS"] == {"connect_timeout": "60", "sslmode": "require"}
