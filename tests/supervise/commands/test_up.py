"""What `up` says once everything runs. The real thing is started by tests/processes."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from botbottle.web.planes import Plane
from supervise.management.commands.up import plan_for


def told(*, as_json: bool) -> str:
    opened: Any = [SimpleNamespace(plane=plane, port=8000 + number) for number, plane in enumerate(Plane)]
    return plan_for(opened, as_json=as_json).announcement


@pytest.fixture(autouse=True)
def on_loopback(settings: Any) -> None:
    settings.CONSOLE_BIND = settings.SUPERVISE_BIND = "127.0.0.1"
    settings.SUPERVISE_HOSTS = []


def test_people_get_three_lines() -> None:
    console, agents, bottle = told(as_json=False).splitlines()
    assert console == "console  http://127.0.0.1:8001/"
    assert agents == "agents   http://127.0.0.1:8000/mcp"
    assert bottle.endswith("manage.py bottle create demo")


def test_scripts_get_one() -> None:
    (line,) = told(as_json=True).splitlines()
    assert json.loads(line)["agents"] == "http://127.0.0.1:8000/mcp"
