"""The data types of a plan: `provision` and `launch` make it, `backends` read it.

Every start imports this.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

HOME_INSIDE = "/home/agent"
WORKSPACE_INSIDE = "/workspace"
RUN_INSIDE = "/run/bot-bottle"
SOCKETS_INSIDE = f"{RUN_INSIDE}/sockets"
PROGRAMS_INSIDE = f"{RUN_INSIDE}/inside"
INIT_INSIDE = f"{PROGRAMS_INSIDE}/init.py"
CONFIG_INSIDE = "/etc/bot-bottle/current-config"
TRUST_INSIDE = "/etc/bot-bottle/ca"
USER_INSIDE, UID_INSIDE = "agent", 1000
PROXY_PORT_INSIDE, AGENT_PORT_INSIDE = 9101, 9100


class BackendError(Exception):
    """A problem that the operator must solve; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Variable:
    """Where a variable's value comes from. It is looked up at each start, so a plan contains no secret."""

    value: str | None = None
    from_env: str | None = None
    from_file: str | None = None

    @property
    def secret(self) -> bool:
        return self.value is None

    def resolve(self, name: str) -> str:
        """Raises BackendError when the host does not have it."""
        if self.value is not None:
            return self.value
        if self.from_env is not None:
            if self.from_env not in os.environ:
                raise BackendError(
                    f"env.{name}: the host has no variable {self.from_env}. Set it, or drop it."
                )
            return os.environ[self.from_env]
        try:
            return Path(str(self.from_file)).expanduser().read_text(encoding="utf-8").rstrip("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise BackendError(f"env.{name}: {self.from_file} cannot be read: {error}.") from error


@dataclass(frozen=True, slots=True)
class Mount:
    source: str  # absolute, on the host
    target: str  # absolute, in the bottle
    writable: bool = False


@dataclass(frozen=True, slots=True)
class File:
    """A small file that is put into the bottle at its start."""

    path: str  # absolute, in the bottle
    content: str
    mode: int = 0o644


@dataclass(frozen=True, slots=True)
class Limits:
    cpus: float | None = None
    memory: int | None = None  # bytes
    pids: int | None = None
    files: int | None = None  # descriptors of each process


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a backend needs to start a bottle, decided before anything runs. Contains no secret."""

    slug: str
    backend: str
    directory: str  # the bottle's own, on the host
    image: str = (
        ""  # docker: a name; smolmachines: a directory or archive; local: a directory, or "" = this host
    )
    dockerfile: str = ""  # path of the file the image is built from, where there is one
    agent: str = "none"
    command: tuple[str, ...] = ()  # empty: the bottle stays idle until something is executed in it
    variables: Mapping[str, Variable] = field(default_factory=dict)
    files: tuple[File, ...] = ()
    mounts: tuple[Mount, ...] = ()  # workspace, sockets, current-config, trust and what the manifest adds
    workdir: str = WORKSPACE_INSIDE
    limits: Limits = Limits()
    supervise: bool = True

    def environment(self) -> dict[str, str]:
        """The variables with their values. Raises BackendError. Never log or print the result."""
        return {name: variable.resolve(name) for name, variable in self.variables.items()}
