"""Reads a bottle's manifest completely, or refuses it with the line of the problem.

Trust boundary: an operator wrote it, never an agent; launch/host_paths.py refuses one that its bottle could
rewrite.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from botbottle import backends
from botbottle.core.plan_types import BackendError, Limits, Mount, Variable
from botbottle.manifest import mcp_servers as servers
from botbottle.manifest import yaml as manifest_yaml
from botbottle.manifest.example import EXAMPLE
from botbottle.provision import agents, mount_sources, variables
from egress.policy.asks import parse_operator_route
from egress.policy.errors import PolicyError, quoted
from egress.policy.hostnames import check_operator_host
from egress.policy.merge import merge_route
from egress.policy.table import RouteTable

__all__ = ["EXAMPLE", "BadManifest", "Manifest", "Workspace", "load", "parse"]

KEYS = (
    "backend", "image", "dockerfile", "agent", "command", "env", "workspace", "home", "mounts", "routes",
    "gate_hosts", "limits", "supervise", "context", "mcp_servers",
)  # fmt: skip
ROUTE_KEYS = ("host", "path_allowlist", "methods", "auth", "lease", "dlp", "pinned_addresses")
LIMITS = ("cpus", "memory", "pids", "files")
MIN_MEMORY, MIN_PIDS, MIN_FILES = 32 * 1024**2, 16, 64

_T = TypeVar("_T")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_SERVER = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,254}")
_MEMORY = re.compile(r"([1-9][0-9]{0,11})([kmgt]?)b?", re.IGNORECASE)
_FIELD = re.compile(r"([a-z_]+)(?:\.[a-z_]+|\[\d+\])*")
_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


class BadManifest(BackendError):
    """The manifest is refused. The message names file, line and key, and says what is allowed."""


@dataclass(frozen=True, slots=True)
class Workspace:
    path: str = ""  # absolute, on the host; "" is the bottle's own directory, created by a start
    writable: bool = True


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest. Relative paths are made absolute; `routes` are asks as `egress.policy.asks` parses them."""

    name: str
    backend: str = "local"
    image: str = ""
    dockerfile: str = ""
    agent: str = "none"
    command: tuple[str, ...] | None = None  # None: the agent's default
    env: Mapping[str, Variable] = field(default_factory=dict)
    workspace: Workspace = Workspace()
    home: str = ""
    mounts: tuple[Mount, ...] = ()
    routes: tuple[Mapping[str, Any], ...] = ()
    gate_hosts: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    supervise: bool = True
    context: bool = True
    mcp_servers: Mapping[str, servers.Spec] = field(default_factory=dict)
    path: str = ""  # of the file, absolute; "" if it was parsed from a text
    text: str = field(default="", compare=False, repr=False)
    lines: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)

    def refuse(self, key: str, what: str) -> BadManifest:
        """Make a refusal for a problem that only shows on the host."""
        return _refusal(self.name, self.lines, key, what)


def load(path: Path) -> Manifest:
    """Read a manifest's file. Raises BadManifest, also when it does not exist."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise BadManifest(
            f"There is no manifest {path}. Write one with 'bottle init {path.stem}'."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadManifest(f"{path} cannot be read: {error}. A manifest is a text file in UTF-8.") from error
    return parse(text, str(path), path=path.absolute())


def parse(text: str, name: str, *, path: Path | None = None) -> Manifest:
    """Parse a manifest. `name` is for messages. Raises BadManifest.

    Relative paths start where the file is, else in the current directory.
    """
    try:
        plain, lines = manifest_yaml.read(text)
    except manifest_yaml.BadYaml as error:
        raise BadManifest(f"{name}, line {error.line}: {error}") from error
    return _Reading(name, lines, path.parent if path else Path.cwd()).manifest(plain, text, str(path or ""))


def _refusal(name: str, lines: Mapping[str, int], key: str, what: str) -> BadManifest:
    known = key
    while known and known not in lines:  # a missing key is located at its parent
        known = known[: max(known.rfind("."), known.rfind("["), 0)]
    shown = "" if not key else f", {key if key.isprintable() else ascii(key)}"
    return BadManifest(f"{name}, line {lines.get(known, 1)}{shown}: {what}")


@dataclass(frozen=True, slots=True)
class _Reading:
    """One pass over the plain values; every refusal knows its key."""

    name: str
    lines: Mapping[str, int]
    directory: Path

    def manifest(self, plain: object, text: str, path: str) -> Manifest:
        if plain is None:
            raise BadManifest(f"{self.name}, line 1: it is empty. Write at least 'backend: local'.")
        given = self.mapping(plain, "", KEYS)
        backend = self.choice(given, "backend", backends.NAMES, "local")
        return Manifest(
            name=self.name,
            backend=backend,
            image=self.image(given, backend),
            dockerfile=self.dockerfile(given, backend),
            agent=self.choice(given, "agent", agents.KINDS, "none"),
            command=self.command(given),
            env=self.each(given, "env", self.variable),
            workspace=self.workspace(given),
            home=self.file(given, "home"),
            mounts=self.listed(given, "mounts", self.mount),
            routes=self.routes(given),
            gate_hosts=self.listed(given, "gate_hosts", self.gate_host),
            limits=self.bottle_limits(given),
            supervise=self.flag(given, "supervise"),
            context=self.flag(given, "context"),
            mcp_servers=self.mcp_servers(given),
            path=path,
            text=text,
            lines=self.lines,
        )

    def refuse(self, key: str, what: str) -> BadManifest:
        return _refusal(self.name, self.lines, key, what)

    # Values by their kind

    def mapping(self, value: object, key: str, allowed: tuple[str, ...]) -> dict[str, Any]:
        """A mapping with only these keys. Keys without a value count as absent."""
        if not isinstance(value, dict):
            raise self.refuse(key, f"must be a mapping with {', '.join(allowed)}; got {quoted(value)}.")
        for name in value:
            if name not in allowed:
                raise self.refuse(_inside(key, name), manifest_yaml.unknown(name, allowed))
        return {name: entry for name, entry in value.items() if entry is not None}

    def text(self, value: object, key: str) -> str:
        if not isinstance(value, str):
            raise self.refuse(key, f"must be text; got {quoted(value)}. Put it in quotes.")
        if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
            raise self.refuse(key, "has a NUL or half of a character.")
        return value

    def choice(self, given: Mapping[str, Any], key: str, allowed: tuple[str, ...], default: str) -> str:
        value = given.get(key.rpartition(".")[2], default)
        if value not in allowed:
            raise self.refuse(key, f"must be one of {', '.join(allowed)}; got {quoted(value)}.")
        return str(value)

    def flag(self, given: Mapping[str, Any], key: str) -> bool:
        value = given.get(key, True)
        if not isinstance(value, bool):
            raise self.refuse(key, f"must be true or false; got {quoted(value)}.")
        return value

    def file(self, given: Mapping[str, Any], key: str) -> str:
        """A path of the host made absolute, or ""."""
        name = key.rpartition(".")[2]
        return self.host_path(given[name], key) if name in given else ""

    def host_path(self, value: object, key: str) -> str:
        text = self.text(value, key)
        if not text or not text.isprintable():
            raise self.refuse(key, f"must be a path; got {quoted(text)}.")
        try:
            path = Path(text).expanduser()
        except RuntimeError as error:
            raise self.refuse(key, f"{quoted(text)} names a user who does not exist.") from error
        return str(self.directory / path)

    def listed(self, given: Mapping[str, Any], key: str, read: Callable[[object, str], _T]) -> tuple[_T, ...]:
        entries = given.get(key, [])
        if not isinstance(entries, list):
            raise self.refuse(key, f"must be a list; got {quoted(entries)}.")
        return tuple(read(entry, f"{key}[{index}]") for index, entry in enumerate(entries))

    def each(
        self, given: Mapping[str, Any], key: str, read: Callable[[object, str, str], _T]
    ) -> dict[str, _T]:
        entries = given.get(key, {})
        if not isinstance(entries, dict):
            raise self.refuse(key, f"must be a mapping of names; got {quoted(entries)}.")
        return {name: read(entry, f"{key}.{name}", name) for name, entry in entries.items()}

    # The keys, one by one

    def image(self, given: Mapping[str, Any], backend: str) -> str:
        """A name in an engine, or a path of this host."""
        traits = backends.traits(backend)
        sources = ("image", "dockerfile") if traits.builds_dockerfiles else ("image",)
        if traits.needs_image and not any(key in given for key in sources):
            raise self.refuse("backend", f"{backend} needs an {' or a '.join(sources)} to start from.")
        if not traits.names_images or "image" not in given:
            return self.file(given, "image")
        image = self.text(given["image"], "image")
        if not _IMAGE.fullmatch(image):
            raise self.refuse("image", f"must be an image's name such as 'agents:1'; got {quoted(image)}.")
        return image

    def dockerfile(self, given: Mapping[str, Any], backend: str) -> str:
        if "dockerfile" in given and not backends.traits(backend).builds_dockerfiles:
            raise self.refuse(
                "dockerfile",
                f"{backend} does not build images. Take 'backend: docker', or name a directory as image.",
            )
        return self.file(given, "dockerfile")

    def command(self, given: Mapping[str, Any]) -> tuple[str, ...] | None:
        if "command" not in given:
            return None
        if not isinstance(given["command"], list):
            raise self.refuse("command", 'must be a list of words, such as ["bash", "-l"].')
        words = self.listed(given, "command", self.text)
        if words and not words[0]:
            raise self.refuse("command[0]", "must name the program.")
        return words

    def variable(self, value: object, key: str, name: str) -> Variable:
        if not _NAME.fullmatch(name):
            raise self.refuse(key, "a variable's name is letters, digits and '_', not starting with a digit.")
        if name in variables.RESERVED:
            raise self.refuse(
                key, "the bottle sets this itself, to its proxy, its CA or its user. Leave it out."
            )
        if not isinstance(value, dict):
            return Variable(value=self.text(value, key))
        source = self.mapping(value, key, ("from_env", "from_file"))
        if len(source) != 1:
            raise self.refuse(key, "needs text, or one of from_env and from_file.")
        if "from_file" in source:
            return Variable(from_file=self.host_path(source["from_file"], f"{key}.from_file"))
        host_name = self.text(source["from_env"], f"{key}.from_env")
        if not _NAME.fullmatch(host_name):
            raise self.refuse(
                f"{key}.from_env", f"must name a variable of the host; got {quoted(host_name)}."
            )
        return Variable(from_env=host_name)

    def workspace(self, given: Mapping[str, Any]) -> Workspace:
        if "workspace" not in given:
            return Workspace()
        part = self.mapping(given["workspace"], "workspace", ("path", "mode"))
        mode = self.choice(part, "workspace.mode", ("rw", "ro"), "rw")
        return Workspace(self.file(part, "workspace.path"), mode == "rw")

    def mount(self, value: object, key: str) -> Mount:
        part = self.mapping(value, key, ("path", "target", "mode"))
        for name in ("path", "target"):
            if name not in part:
                raise self.refuse(f"{key}.{name}", "is required.")
        target = self.text(part["target"], f"{key}.target")
        try:
            mount_sources.check_target(target)
        except ValueError as error:
            raise self.refuse(f"{key}.target", f"{error}") from error
        mode = self.choice(part, f"{key}.mode", ("rw", "ro"), "ro")
        return Mount(self.host_path(part["path"], f"{key}.path"), target, mode == "rw")

    def routes(self, given: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
        found = self.listed(given, "routes", self.route)
        hosts = [route["host"] for route in found]
        for index, host in enumerate(hosts):
            if host in hosts[:index]:
                raise self.refuse(f"routes[{index}].host", f"{host} stands twice. Write one route per host.")
        return found

    def route(self, value: object, key: str) -> Mapping[str, Any]:
        part = self.mapping(value, key, ROUTE_KEYS)
        try:
            asked = parse_operator_route(part)
            merge_route(RouteTable(), asked, now=datetime.now(UTC), operator=True)
        except PolicyError as error:
            # The sentence begins with the field's name, such as lease.ttl_seconds, which gives the line.
            named = _FIELD.match(str(error))
            at = f"{key}.{named[0]}" if named and named[1] in part else key
            raise self.refuse(at, f"{error}.") from error
        return asked

    def gate_host(self, value: object, key: str) -> str:
        try:
            return check_operator_host(self.text(value, key), field="it")
        except PolicyError as error:
            raise self.refuse(key, f"{error}.") from error

    def bottle_limits(self, given: Mapping[str, Any]) -> Limits:
        return self.limits(self.mapping(given.get("limits", {}), "limits", LIMITS))

    def limits(self, part: Mapping[str, Any], key: str = "limits") -> Limits:
        cpus = part.get("cpus")
        if cpus is not None and (type(cpus) not in {int, float} or not 0.01 <= cpus <= 1024):
            raise self.refuse(f"{key}.cpus", f"must be a number from 0.01 to 1024; got {quoted(cpus)}.")
        memory = self.memory(part.get("memory"), f"{key}.memory")
        pids = self.count(part.get("pids"), f"{key}.pids", MIN_PIDS, 4_194_304)
        files = self.count(part.get("files"), f"{key}.files", MIN_FILES, 1_048_576)
        return Limits(None if cpus is None else float(cpus), memory, pids, files)

    def count(self, value: object, key: str, least: int, most: int) -> int | None:
        if value is not None and (type(value) is not int or not least <= value <= most):
            raise self.refuse(key, f"must be a whole number from {least} to {most}; got {quoted(value)}.")
        return value

    def memory(self, value: object, key: str) -> int | None:
        if value is None:
            return None
        match = _MEMORY.fullmatch(str(value)) if type(value) in {int, str} else None
        size = int(match[1]) * _UNITS[match[2].lower()] if match else 0
        if not MIN_MEMORY <= size < 2**63:
            raise self.refuse(key, f"must be a size such as 2g, at least 32m; got {quoted(value)}.")
        return size

    def mcp_servers(self, given: Mapping[str, Any]) -> Mapping[str, servers.Spec]:
        found = self.each(given, "mcp_servers", self.server)
        if found and not given.get("supervise", True):
            raise self.refuse(
                "mcp_servers", "they are reached as supervise is: leave 'supervise: false' out."
            )
        return found

    def server(self, value: object, key: str, name: str) -> servers.Spec:
        if not _SERVER.fullmatch(name) or name == agents.SERVER:
            raise self.refuse(key, f"a server's name is a-z, 0-9 and '-', and not {agents.SERVER!r}.")
        return servers.read(self, value, key, name)


def _inside(key: str, name: object) -> str:
    return f"{key}.{name}" if key else f"{name}"
