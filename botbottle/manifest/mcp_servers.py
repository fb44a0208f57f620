"""A manifest's entry for a managed MCP server. Pure; written by an operator."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from botbottle.core.plan_types import Limits, Variable

KEYS: Final = (
    "command", "args", "env", "host_path", "mode", "startup_timeout", "cpus", "memory", "pids", "read_only",
    "tools",
)  # fmt: skip
ASK, ALLOW = "ask", "allow"
EVERY = "*"  # in `tools`: all tools that are not listed
STARTUP_SECONDS = 60.0
_TOOL = re.compile(r"\*|[^\s\x00-\x1f\x7f]{1,128}")


@dataclass(frozen=True, slots=True)
class Spec:
    name: str
    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, Variable] = field(default_factory=dict)
    host_path: str = ""  # absolute; "": stages no files
    writable: bool = False  # of the copy, never of the original
    startup_timeout: float = STARTUP_SECONDS
    limits: Limits = field(default_factory=Limits)
    tools: Mapping[str, str] = field(default_factory=dict)

    def asks(self, tool: str) -> bool:
        """Whether an operator decides each call of the tool."""
        return self.tools.get(tool, self.tools.get(EVERY, ALLOW)) == ASK


class Reading(Protocol):
    """The manifest's reader: each refusal names the line."""

    def refuse(self, key: str, what: str) -> Exception: ...
    def mapping(self, value: object, key: str, allowed: tuple[str, ...]) -> dict[str, Any]: ...
    def text(self, value: object, key: str) -> str: ...
    def choice(self, given: Mapping[str, Any], key: str, allowed: tuple[str, ...], default: str) -> str: ...
    def file(self, given: Mapping[str, Any], key: str) -> str: ...
    def variable(self, value: object, key: str, name: str) -> Variable: ...
    def limits(self, given: Mapping[str, Any], key: str = ...) -> Limits: ...


def read(reading: Reading, value: object, key: str, name: str) -> Spec:
    """Read an entry. Raises what `reading` raises."""
    given = reading.mapping(value, key, KEYS)
    if "command" not in given:
        raise reading.refuse(f"{key}.command", "is required: the program, such as python3 or npx.")
    command = reading.text(given["command"], f"{key}.command")
    if not command.strip() or not command.isprintable():
        raise reading.refuse(f"{key}.command", "must name the program; its words go into args.")
    if given.get("read_only", True) is not True:
        raise reading.refuse(f"{key}.read_only", "a bottle's root is always read-only: leave it out.")
    return Spec(
        name=name,
        command=command,
        args=tuple(
            reading.text(word, f"{key}.args[{index}]")
            for index, word in enumerate(_list(reading, given, f"{key}.args"))
        ),
        env={
            variable: reading.variable(entry, f"{key}.env.{variable}", variable)
            for variable, entry in _names(reading, given, f"{key}.env").items()
        },
        host_path=reading.file(given, f"{key}.host_path"),
        writable=reading.choice(given, f"{key}.mode", ("ro", "rw"), "ro") == "rw",
        startup_timeout=_seconds(reading, given, f"{key}.startup_timeout"),
        limits=reading.limits({k: given[k] for k in ("cpus", "memory", "pids") if k in given}, key),
        tools=_tools(reading, given, f"{key}.tools"),
    )


def _list(reading: Reading, given: Mapping[str, Any], key: str) -> list[Any]:
    value = given.get(key.rpartition(".")[2], [])
    if not isinstance(value, list):
        raise reading.refuse(key, 'must be a list of words, such as ["server.py", "--root", "/workspace"].')
    return value


def _names(reading: Reading, given: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = given.get(key.rpartition(".")[2], {})
    if not isinstance(value, dict):
        raise reading.refuse(key, "must be a mapping of names.")
    return value


def _seconds(reading: Reading, given: Mapping[str, Any], key: str) -> float:
    value = given.get("startup_timeout", STARTUP_SECONDS)
    if type(value) not in {int, float} or not 1 <= value <= 3600:
        raise reading.refuse(key, "must be a number of seconds from 1 to 3600.")
    return float(value)


def _tools(reading: Reading, given: Mapping[str, Any], key: str) -> dict[str, str]:
    tools = {}
    for name, value in _names(reading, given, key).items():
        if not isinstance(name, str) or not _TOOL.fullmatch(name):
            raise reading.refuse(key, "a tool's name is up to 128 characters without spaces, or '*'.")
        if value not in (ASK, ALLOW):
            raise reading.refuse(f"{key}.{name}", "must be ask or allow.")
        tools[name] = value
    return tools
