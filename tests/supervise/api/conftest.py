from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from supervise.access import api_keys


@dataclass
class Caller:
    """A script with a key."""

    client: Client
    key: str

    def get(self, path: str, **query: str) -> Any:
        return self.client.get(f"/api/{path}", query, headers={"Authorization": f"Bearer {self.key}"})

    def post(self, path: str, **body: Any) -> Any:
        return self.client.post(
            f"/api/{path}",
            json.dumps(body),
            content_type="application/json",
            headers={"Authorization": f"Bearer {self.key}"},
        )


@pytest.fixture
def calling(db: None) -> Callable[[User], Caller]:
    return lambda user: Caller(Client(enforce_csrf_checks=True), api_keys.create(user, "script"))


@pytest.fixture
def api(calling: Callable[[User], Caller], operator: User) -> Caller:
    return calling(operator)
