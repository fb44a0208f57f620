"""The document about the proxy keeps up with the code: every setting, every reason, every scheme."""

from __future__ import annotations

import ast
import re

import pytest

from egress.routes import OPERATOR_SCHEMES
from tests.servers import ROOT

DOCUMENT = (ROOT / "docs" / "egress.md").read_text(encoding="utf-8")
SOURCES = [*(ROOT / "egress" / "proxy").glob("*.py"), ROOT / "egress" / "policy.py"]
REFUSING = {"Refusal", "BadRequest", "Unreachable", "Gone", "Verdict"}
OF_THE_CONTROL_SOCKET = {"bad-query"}


def reasons() -> set[str]:
    """The codes that refusals, ends and verdicts are made with."""
    found = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in REFUSING:
                words = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
                found |= {word for word in words[:2] if isinstance(word, str) and " " not in word}
    return found - {"ok"} - OF_THE_CONTROL_SOCKET


def settings() -> set[str]:
    texts = [(ROOT / name).read_text() for name in ("egress/proxy/config.py", "egress/proxy/main.py")]
    texts.append((ROOT / "botbottle" / "settings.py").read_text())
    return {name for text in texts for name in re.findall(r'"(EGRESS_[A-Z_]+)"', text)}


def test_these_lists_are_real() -> None:
    assert {"no-route", "gate", "dlp", "who", "credential-missing", "bad-target"} <= reasons()
    assert {"EGRESS_PORT", "EGRESS_DEBUG", "EGRESS_RECORD_DAYS"} <= settings()


@pytest.mark.parametrize("reason", sorted(reasons()))
def test_every_reason_is_explained(reason: str) -> None:
    assert f"`{reason}`" in DOCUMENT


@pytest.mark.parametrize("name", sorted(settings()))
def test_every_setting_is_listed(name: str) -> None:
    assert f"`{name}`" in DOCUMENT


@pytest.mark.parametrize("scheme", OPERATOR_SCHEMES)
def test_every_scheme_is_listed(scheme: str) -> None:
    assert f"| `{scheme}` |" in DOCUMENT


def test_no_line_is_too_long_to_read() -> None:
    long = [line for line in DOCUMENT.splitlines() if len(line) > 130 and not line.startswith("|")]
    assert long == []
