"""Images of bottles: which exist, what is built, what is in them.

Trust boundary: an agent wrote the Dockerfile of a rebuild, so everything the engine would fetch for it (a
missing base, ADD) is refused. Logs are an agent's text too. `build.py` does the rebuild.
"""

from __future__ import annotations

import hashlib
import io
import posixpath
import re
import tarfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from docker import DockerClient  # type: ignore[import-untyped]
from docker.errors import APIError, NotFound  # type: ignore[import-untyped]

from botbottle.backends.base import Progress
from botbottle.backends.docker import sources
from botbottle.backends.docker.sources import find
from botbottle.core.plan_types import BackendError, Plan
from botbottle.dockerfiles import build_rules
from botbottle.dockerfiles.parse import BadDockerfile

DIGEST_LABEL = "bot-bottle.dockerfile"
_BUILD_SECONDS = 3600  # between two lines of a build, not for the whole of it
_TAIL_LINES = 30
_READ_LIMIT = 1 << 20
_LINKS = 8
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def ready_image(
    client: DockerClient, plan: Plan, labels: dict[str, str], name: str, progress: Progress
) -> str:
    """Return the id of the plan's image; builds it first if its Dockerfile is new. Raises BackendError."""
    if not plan.dockerfile:
        return _existing(client, plan.image)
    path = Path(plan.dockerfile)
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise BackendError(f"The Dockerfile {path} cannot be read: {error.strerror}.") from error
    name = plan.image or name
    image = find(client, name)
    if image is not None and image.labels.get(DIGEST_LABEL) == digest:
        return str(image.id)
    progress(f"Building {name} from {path}")
    labels = {**labels, DIGEST_LABEL: digest}
    _build_own(client, name, path, labels, progress)
    return _existing(client, name)


def _build_own(
    client: DockerClient, name: str, path: Path, labels: dict[str, str], progress: Progress
) -> None:
    """Build an operator's own Dockerfile in its directory. The engine pulls missing images."""
    named = build_rules.named_images(path.read_text(encoding="utf-8", errors="replace"))
    before = sources.ids_of(client, named)
    labelled = {**labels, sources.LABEL: sources.written(before)}
    build(client, name, labelled, progress, path=str(path.parent), dockerfile=path.name)
    # Pulled names are resolved by now, so this second build only adds a label.
    after = {**sources.ids_of(client, [each for each in named if each not in before]), **before}
    if after != before:
        labelled[sources.LABEL] = sources.written(after)
        same = io.BytesIO(f"FROM {_existing(client, name)}\n".encode())
        build(client, name, labelled, lambda _: None, fileobj=same)


def _existing(client: DockerClient, name: str) -> str:
    image = find(client, name) if name else None
    if image is None and name.startswith("bot-bottle-"):
        raise BackendError(
            f"The image {name}, which was built for this bottle, is gone. Rebuild it with: bottle rebuild "
            "SLUG, or name another image in the manifest."
        )
    if image is None:
        raise BackendError(
            f"The Docker engine has no image {name!r}. Build it (docker build -t {name} .), pull it "
            f"(docker pull {name}) or import it (docker import rootfs.tar {name}): a bottle pulls nothing."
        )
    return str(image.id)


def build(client: DockerClient, name: str, labels: dict[str, str], progress: Progress, **how: Any) -> None:
    """Build and report the log line by line; a failure carries the end of the log."""
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    events = client.api.build(
        tag=name, labels=labels, rm=True, forcerm=True, decode=True, timeout=_BUILD_SECONDS, **how
    )
    for event in events:
        for line in _lines(event):
            tail.append(line)
            progress(line)
        if "error" in event:
            reason = " ".join(_plain_lines(str(event["error"])))
            log = "\n".join([*tail, reason])
            raise BackendError(f"The image was not built: {reason}. The end of the build's log:\n{log}")


def _lines(event: dict[str, Any]) -> Iterator[str]:
    if "progress" in event:  # a progress bar, many times a second
        return
    identifier = f"{event['id']}: " if "id" in event else ""
    yield from _plain_lines(identifier + str(event.get("stream") or event.get("status") or ""))


def _plain_lines(text: str) -> Iterator[str]:
    for line in _COLOURS.sub("", text).splitlines():
        plain = "".join(
            each if each.isprintable() or each == "\t" else "\N{REPLACEMENT CHARACTER}" for each in line
        )
        if plain.strip():
            yield plain[:500]


def refuse_fetches(text: str, image_of: Callable[[str], Any]) -> dict[str, str]:
    """Raises BackendError for everything the engine would fetch over the host's network in a build.

    Returns the images that the text builds on and copies from, by name, with their ids.
    """
    found: dict[str, str] = {}
    for each in needed_images(text):
        image = image_of(each.name)
        problem = problem_with(each, image)
        if problem:
            raise BackendError(problem)
        found[each.name] = str(image.id)
    return found


def needed_images(text: str) -> list[build_rules.Needed]:
    """The images a text needs. Raises BackendError for a text that cannot be built with any images."""
    try:
        return build_rules.needed_images(text)
    except BadDockerfile as error:
        raise BackendError(f"The Dockerfile cannot be built: {error}.") from error


def problem_with(needed: build_rules.Needed, image: Any) -> str:
    """Why a rebuild does not accept the engine's image of this name; empty when it does."""
    if image is None:
        return (
            f"line {needed.line}: the Docker engine has no image {needed.name[:200]!a}, and a rebuild pulls "
            "none. If you trust it, fetch it first with docker pull."
        )
    # A base must not contain what the text may not contain.
    config = (image.attrs.get("Config") or {}) if needed.is_base else {}
    which = f"line {needed.line}: the image {needed.name[:200]!a}"
    if config.get("OnBuild"):
        return f"{which} has ONBUILD steps, which fetch past the proxy. Start from another one."
    if config.get("Volumes"):
        volumes = ", ".join(sorted(config["Volumes"]))[:200]
        return (
            f"{which} has volumes ({volumes}), whose files are not counted while the image is built. Start "
            "from another one."
        )
    return ""


def read_text(client: DockerClient, image: str, path: str, labels: dict[str, str]) -> str | None:
    """Return a text file of an image. A container is created for reading; it never runs."""
    found = find(client, image) if image else None
    if found is None:
        return None
    container = client.containers.create(found.id, ["-"], labels=labels, network_mode="none")
    try:
        for _ in range(_LINKS):
            member, content = _fetch(container, path)
            if member is None or not member.issym():
                return content
            path = posixpath.normpath(posixpath.join(posixpath.dirname(path), member.linkname))
        return None
    finally:
        container.remove(force=True, v=True)


def _fetch(container: Any, path: str) -> tuple[tarfile.TarInfo | None, str | None]:
    try:
        chunks, stat = container.get_archive(path)
    except APIError as error:
        if isinstance(error, NotFound) or "too many links" in str(error.explanation):
            return None, None
        raise
    if int(stat["size"]) > _READ_LIMIT:
        return None, None
    with tarfile.open(fileobj=io.BytesIO(_bounded(chunks)), mode="r|") as archive:
        member = archive.next()
        file = archive.extractfile(member) if member is not None and member.isreg() else None
        if file is None:
            return member, None
        try:
            return member, file.read().decode()
        except UnicodeDecodeError:
            return member, None


def _bounded(chunks: Iterable[bytes]) -> bytes:
    """Read an archive up to a bound: a directory's archive is as large as its content."""
    received = b""
    for chunk in chunks:
        received += chunk
        if len(received) > 2 * _READ_LIMIT:
            break
    return received
