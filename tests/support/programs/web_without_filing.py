"""`manage.py web` that files the first ask of all, and lets every later one wait for the same proposal.

Thousands of calls wait after seconds instead of minutes. During a stop its database is slow: calls that
look into it then are not answered in time.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
os.environ["DJANGO_SETTINGS_MODULE"] = "botbottle.settings"
os.umask(0o077)

import django  # noqa: E402

django.setup()

from asgiref.sync import sync_to_async  # noqa: E402
from django.core.management import execute_from_command_line  # noqa: E402

from supervise.mcp import tools  # noqa: E402
from supervise.proposals import queries  # noqa: E402
from supervise.proposals.waiting import hub  # noqa: E402

SLOW_SECONDS = 0.1
file, asked = tools.call, []


def file_once(*ask: Any) -> Any:
    if not asked:
        asked.append(file(*ask))
    return asked[0]


def look(proposal_id: str) -> Any:
    if hub.draining:
        time.sleep(SLOW_SECONDS)
    return queries.outcome(proposal_id)


tools.call = file_once
queries.aoutcome = sync_to_async(look)
execute_from_command_line(["manage.py", "web"])
