"""`manage.py web` that files the first ask of all, and lets every later one wait for the same proposal.

Thousands of calls wait after seconds instead of minutes. All else is as it is.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
os.environ["DJANGO_SETTINGS_MODULE"] = "botbottle.settings"
os.umask(0o077)

import django  # noqa: E402

django.setup()

from django.core.management import execute_from_command_line  # noqa: E402

from supervise.mcp import tools  # noqa: E402

file, asked = tools.call, []


def file_once(*ask: Any) -> Any:
    if not asked:
        asked.append(file(*ask))
    return asked[0]


tools.call = file_once
execute_from_command_line(["manage.py", "web"])
