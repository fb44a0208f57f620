"""What a management command loads: large libraries only where they are used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

pytestmark = pytest.mark.process
PROGRAM = """
import sys
import django
from django.core.management import call_command
django.setup()
call_command("migrate", verbosity=0, skip_checks=True)
for words in (["bottle", "list"], ["proposals", "list"], ["routes", "show", "x"], ["verify_audit"]):
    try:
        call_command(*words)
    except Exception as error:
        assert type(error).__name__ == "CommandError", error
large = {"psycopg", "docker", "drf_spectacular.openapi", "drf_spectacular.utils", "jsonschema", "twisted"}
print("loaded:", *sorted(large & set(sys.modules)))
"""


def test_plain_commands_load_no_library_that_they_do_not_use(tmp_path: Path) -> None:
    environment = {
        "BOTTLE_HOME": str(tmp_path),
        "DJANGO_SETTINGS_MODULE": "botbottle.settings",
        "PATH": "/bin",
    }
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines()[-1] == "loaded:"
