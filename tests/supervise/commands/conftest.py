from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command


@dataclass
class Ran:
    output: str
    error: str  # the sentence a failing command ends with; empty for success

    @property
    def json(self) -> Any:
        return json.loads(self.output)


@pytest.fixture
def manage(transactional_db: None) -> Callable[..., Ran]:
    """A management command as a script would call it, in this process."""

    def run(*arguments: str) -> Ran:
        output = StringIO()
        try:
            call_command(*arguments, stdout=output)
        except CommandError as error:
            return Ran(output.getvalue(), str(error))
        return Ran(output.getvalue(), "")

    return run
