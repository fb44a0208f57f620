"""Copies a managed server's files from the host into the bottle, and removes them again.

Trust boundary: only files under an allowed root are read, no link is followed, and only plain files and
directories are copied. The workspace is the agent's: on the host, its links are not followed.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path, PurePosixPath

from botbottle.core.plan_types import HOME_INSIDE, WORKSPACE_INSIDE
from botbottle.manifest.mcp_servers import Spec
from botbottle.provision.mount_sources import check_not_writable

MOST_FILES = 20_000
MOST_BYTES = 200 * 1024**2
MOST_DEPTH = 40
PLACE = ".bot-bottle/servers"  # in the workspace
LEFT_OUT = frozenset(
    {".git", ".hg", ".svn", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox", ".nox",
     ".cache", ".DS_Store", ".idea", ".vscode"}
)  # fmt: skip
VENVS = (".venv", "venv", "env")
PYTHON_WORKSPACE = ("requirements.txt", "pyproject.toml")


class Refused(Exception):
    """The path cannot be staged; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a server's files in the bottle."""

    name: str
    in_workspace: bool = True

    @property
    def root(self) -> str:
        base = WORKSPACE_INSIDE if self.in_workspace else HOME_INSIDE
        return f"{base}/{PLACE}/{self.name}"

    @property
    def code(self) -> str:
        return f"{self.root}/code"

    @property
    def venv(self) -> str:
        return f"{self.root}/venv"


def places(name: str, *, in_workspace: bool) -> list[Place]:
    """The places to try, best first. The home is in memory, and new at each start."""
    return (
        [Place(name), Place(name, in_workspace=False)] if in_workspace else [Place(name, in_workspace=False)]
    )


def check_root(path: str, roots: Sequence[str], writable: Sequence[str]) -> Path:
    """The path with its links resolved. Raises Refused unless it lies under one of the roots.

    The agent must not be able to write there: the files could change while they are read.
    """
    try:
        real = Path(os.path.realpath(path, strict=True))
    except OSError as error:
        raise Refused(f"host_path {path}: {error.strerror}. Make it, or name another.") from error
    if not any(real.is_relative_to(os.path.realpath(root)) for root in roots):
        raise Refused(
            f"host_path {path} lies outside of the allowed roots ({', '.join(roots)}). Move it there, or add "
            "its directory to BOTTLE_SERVER_ROOTS."
        )
    try:
        check_not_writable(path, writable)
    except ValueError as error:
        raise Refused(f"host_path {error}") from error
    if not real.is_dir():
        raise Refused(f"host_path {path} is not a directory.")
    return real


def copy(source: Path, target: Path, *, writable: bool) -> None:
    """Make a checked copy of a tree in `target`. Raises Refused; then discard the copy."""
    target.mkdir(mode=0o755)
    directory = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _Copy(source, writable=writable).tree(directory, target, ())
    except OSError as error:
        raise Refused(f"host_path {source}: {error.filename or ''} {error.strerror}.") from error
    finally:
        os.close(directory)


class _Copy:
    def __init__(self, source: Path, *, writable: bool) -> None:
        self.source, self.writable = source, writable
        self.files = self.bytes = 0

    def tree(self, directory: int, target: Path, inside: tuple[str, ...]) -> None:
        if len(inside) > MOST_DEPTH:
            raise self.refusal(inside, f"directories are nested more than {MOST_DEPTH} deep")
        for name in sorted(os.listdir(directory)):
            kind = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
            if name in LEFT_OUT or (stat.S_ISDIR(kind) and _is_venv(name, directory)):
                continue
            self.files += 1
            if self.files > MOST_FILES:
                raise self.refusal((), f"it has more than {MOST_FILES} files")
            self.entry(name, kind, directory, target / name, (*inside, name))

    def entry(self, name: str, kind: int, directory: int, target: Path, inside: tuple[str, ...]) -> None:
        if stat.S_ISDIR(kind):
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
            try:
                target.mkdir(mode=0o755)
                self.tree(below, target, inside)
            finally:
                os.close(below)
        elif stat.S_ISREG(kind):
            self.file(name, directory, target, inside)
        elif stat.S_ISLNK(kind):
            self.link(os.readlink(name, dir_fd=directory), target, inside)
        else:
            raise self.refusal(inside, "it is a socket, a pipe or a device")

    def file(self, name: str, directory: int, target: Path, inside: tuple[str, ...]) -> None:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
        with os.fdopen(descriptor, "rb") as original:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                raise self.refusal(inside, "it is a socket, a pipe or a device")
            with target.open("xb") as made:
                while chunk := original.read(1 << 20):
                    self.bytes += len(chunk)
                    if self.bytes > MOST_BYTES:
                        raise self.refusal((), f"it has more than {MOST_BYTES // 1024**2} MiB")
                    made.write(chunk)
        target.chmod((0o555 if mode & 0o100 else 0o444) | (0o200 if self.writable else 0))

    def link(self, leads_to: str, target: Path, inside: tuple[str, ...]) -> None:
        """Return a link that stays within the tree; raises Refused otherwise.

        It may only begin with `..`: after a name that is a link, the text does not show where `..` leads.
        """
        parts = PurePosixPath(leads_to).parts
        ups = len(list(takewhile(lambda part: part == "..", parts)))
        if leads_to.startswith("/") or ups > len(inside) - 1:
            raise self.refusal(inside, "it is a link that leads out of the tree")
        if ".." in parts[ups:]:
            raise self.refusal(inside, "it is a link with '..' behind a name, which may lead out of the tree")
        target.symlink_to(leads_to)

    def refusal(self, inside: tuple[str, ...], why: str) -> Refused:
        where = f": {'/'.join(inside)}" if inside else ""
        return Refused(
            f"host_path {self.source}{where} cannot be staged: {why}. Take it out, or name another path."
        )


def _is_venv(name: str, directory: int) -> bool:
    try:
        os.stat(f"{name}/pyvenv.cfg", dir_fd=directory, follow_symlinks=False)
    except OSError:
        return False
    return True


def needs_installing(source: Path) -> bool:
    return any((source / name).is_file() for name in PYTHON_WORKSPACE)


def remove(workspace: str, name: str) -> None:
    """Remove the staged copy in the workspace on the host. The agent may have put links in its way."""
    descriptors: list[int] = []
    try:
        descriptors.append(os.open(workspace, os.O_RDONLY | os.O_DIRECTORY))
        for part in PLACE.split("/"):
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            descriptors.append(os.open(part, flags, dir_fd=descriptors[-1]))
        shutil.rmtree(name, dir_fd=descriptors[-1], ignore_errors=True)
        for part, parent in zip(reversed(PLACE.split("/")), reversed(descriptors[:-1]), strict=True):
            os.rmdir(part, dir_fd=parent)  # ends at a directory that has other entries
    except OSError:  # it is missing, or no longer ours
        pass
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Launch:
    """What is started, as paths in the bottle."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    path: str = ""  # prepended to PATH


def launch(spec: Spec, place: Place, source: Path | None, env: Mapping[str, str]) -> Launch:
    """Translate the host's paths into the bottle's, and a venv of the host into the bottle's own."""
    if source is None:
        return Launch([spec.command, *spec.args], dict(env), WORKSPACE_INSIDE)
    argv = [_moved(word, spec.host_path, source, place) for word in (spec.command, *spec.args)]
    moved = {name: _moved(value, spec.host_path, source, place) for name, value in env.items()}
    if not needs_installing(source):
        return Launch(argv, moved, place.code)
    return Launch(argv, {"VIRTUAL_ENV": place.venv, **moved}, place.code, f"{place.venv}/bin")


def _moved(word: str, given: str, real: Path, place: Place) -> str:
    for prefix in (str(real), given.rstrip("/")):
        if word == prefix or word.startswith(f"{prefix}/"):
            return _out_of_venv(word[len(prefix) :].lstrip("/"), place, place.code)
    return _out_of_venv(word, place, "") if word.partition("/")[0] in VENVS else word


def _out_of_venv(relative: str, place: Place, base: str) -> str:
    """Use the bottle's venv: one of the host would refer to the host's interpreter."""
    first, _, rest = relative.partition("/")
    if first in VENVS and rest.startswith("bin/"):
        return f"{place.venv}/{rest}"
    return "/".join(part for part in (base, relative) if part)
