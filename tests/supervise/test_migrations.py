"""Migrations make the database that the models describe, whatever the code becomes later."""

from __future__ import annotations

import re

import pytest
from django.core.management import call_command

from tests.support import ROOT

APPS = ("botbottle", "egress", "supervise")


@pytest.mark.django_db
def test_the_models_need_no_migration_that_is_not_there() -> None:
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)


@pytest.mark.parametrize("app", APPS)
def test_migrations_use_no_code_that_may_change(app: str) -> None:
    """A name that is gone later would break every fresh install."""
    paths = sorted((ROOT / app / "migrations").glob("[0-9_]*.py"))
    assert paths
    for path in paths:
        imported = re.findall(r"^\s*(?:from|import) (\S+)", path.read_text(), re.MULTILINE)
        assert not [name for name in imported if re.match(r"botbottle|egress|supervise|\.\.", name)], path
