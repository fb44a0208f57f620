"""A missing real part skips a test loudly, or fails it where BOTTLE_REQUIRE_ALL=1 promises every part."""

from __future__ import annotations

import os

import pytest

MISSING = " is missing: "


def require(condition: object, what: str, hint: str) -> None:
    if condition:
        return
    message = f"{what}{MISSING}{hint}"
    if os.environ.get("BOTTLE_REQUIRE_ALL") == "1":
        pytest.fail(message)
    pytest.skip(message)
