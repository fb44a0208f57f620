"""A local bottle's root filesystem, built by the Docker engine and unpacked beside the bottle.

Trust boundary: the archive holds what an agent's Dockerfile made. It is unpacked inside a sandbox that can
write to nothing but its target, without any capability: no link leads out of it, no device is made.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from docker import DockerClient  # type: ignore[import-untyped]

from botbottle.backends.base import Progress, Unavailable
from botbottle.backends.docker import build as docker_build
from botbottle.backends.docker import sources
from botbottle.backends.docker.engine import connected
from botbottle.core.plan_types import BackendError, Plan
from botbottle.dockerfiles.parse import digest_of

PREFIX = "rootfs-"
_SOURCES = "sources"  # a marker that records the images a directory was built on
_UNPACK_SECONDS = 900
_CONFINED = ("--unshare-all", "--cap-drop", "ALL", "--die-with-parent", "--new-session", "--clearenv")


def rebuild(home: Path, slug: str, text: str, progress: Progress, *, image: str = "") -> str:
    """Build and unpack a root filesystem; returns its directory. Raises Unavailable without an engine."""
    try:
        with connected() as client:
            name = docker_build.rebuild(client, home, slug, text, progress, last=_sources(image))
            target = home / "bottles" / slug / f"{PREFIX}{digest_of(text)[:12]}"
            if not _marker(target).exists():
                built = sources.find(client, name)  # before the export: it takes a while
                _export(client, name, target, progress)
                _marker(target, _SOURCES).write_text(built.labels[sources.LABEL] if built else "")
                _marker(target).write_text(digest_of(text))
            return str(target)
    except Unavailable as error:
        raise Unavailable(
            f"A local bottle's root filesystem is rebuilt by a Docker engine, and there is none here. {error}"
        ) from error


def verify(image: str, digest: str) -> None:
    """Raises BackendError unless this directory was made from the text with this digest."""
    marker = _marker(Path(image))
    if not marker.exists() or marker.read_text() != digest:
        raise BackendError(f"{image} was not built from the approved Dockerfile. Build it again.")


def prune(directory: Path, retained: set[str]) -> None:
    for path in directory.glob(f"{PREFIX}*"):
        if path.is_dir() and str(path) not in retained:
            _marker(path).unlink(missing_ok=True)
            _marker(path, _SOURCES).unlink(missing_ok=True)
            shutil.rmtree(path, ignore_errors=True)


class LocalImages:
    """The root filesystems of one bottle; implements image_builders.Images."""

    def __init__(self, home: Path, slug: str) -> None:
        self.home, self.slug = home, slug

    def build(self, text: str, progress: Progress, *, image: str) -> str:
        return rebuild(self.home, self.slug, text, progress, image=image)

    def compare(self, text: str, image: str, seconds: float) -> list[str]:
        with connected(seconds) as client:
            return docker_build.compare(client, text, _sources(image))

    def verify(self, image: str, digest: str) -> None:
        verify(image, digest)

    def retain(self, plan: Plan) -> str:
        return plan.image

    def prune(self, retained: set[str]) -> None:
        prune(self.home / "bottles" / self.slug, retained)
        docker_build.DockerImages(self.home, self.slug).prune(set())

    def clear(self) -> None:
        try:
            docker_build.DockerImages(self.home, self.slug).clear()
        except BackendError:
            return  # without an engine there is no build to clear


def _marker(target: Path, kind: str = "digest") -> Path:
    """A file beside the directory, where the image cannot write."""
    return target.with_name(f".{target.name}.{kind}")


def _sources(image: str) -> dict[str, str]:
    """The engine's images that this directory was made from; empty for an operator's own directory."""
    try:
        return sources.read(_marker(Path(image), _SOURCES).read_text()) if image else {}
    except (OSError, ValueError):
        return {}


def _export(client: DockerClient, name: str, target: Path, progress: Progress) -> None:
    progress(f"Unpacking the new root filesystem into {target.name}")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(mode=0o755)
    container = client.containers.create(name, ["-"], network_mode="none")
    try:
        _unpack(container.export(), target)
    finally:
        container.remove(force=True, v=True)


def _unpack(chunks: Iterable[bytes], target: Path) -> None:
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise Unavailable("Bubblewrap (the program bwrap) is not installed: apt-get install bubblewrap.")
    command = [bwrap, *_CONFINED, "--ro-bind", "/", "/", "--bind", str(target), str(target)]
    command += ["tar", "-x", "-C", str(target), "--no-same-owner", "--no-same-permissions"]
    command += ["--no-overwrite-dir", "--anchored", "--exclude=dev/*"]
    process = subprocess.Popen(  # noqa: S603 - ours, and a directory of ours
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, umask=0o022
    )
    archive: Any = process.stdin
    try:
        for chunk in chunks:
            archive.write(chunk)
    except BrokenPipeError:
        pass  # tar has printed why
    finally:
        _, said = process.communicate(timeout=_UNPACK_SECONDS)
    if process.returncode != 0:
        shutil.rmtree(target, ignore_errors=True)
        end = said.decode(errors="replace").strip()[-300:]
        raise BackendError(f"The new root filesystem could not be unpacked: {end}")
