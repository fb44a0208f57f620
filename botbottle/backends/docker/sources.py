"""Compares the images that a Dockerfile's names stood for at the last build with those they stand for now.

A build records them in a label, which the engine appends to the text's own labels: the text cannot forge it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from docker import DockerClient  # type: ignore[import-untyped]
from docker.errors import APIError, ImageNotFound, NotFound  # type: ignore[import-untyped]

from botbottle.backends.docker.engine import moment

LABEL = "bot-bottle.sources"


def find(client: DockerClient, name: str) -> Any:
    try:
        return client.images.get(name)
    except ImageNotFound:
        return None


def ids_of(client: DockerClient, names: Iterable[str]) -> dict[str, str]:
    """The ids of the names that the engine has; others are left out."""
    found = {}
    for name in names:
        with suppress(APIError):
            found[name] = str(client.images.get(name).id)
    return found


def written(sources: Mapping[str, str]) -> str:
    """Format as name=id,…: names contain neither character."""
    return ",".join(f"{name}={image}" for name, image in sources.items())


def read(label: str) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in label.split(","))
    return {name: image for name, _, image in pairs if image}


def of_bottle(client: DockerClient, repository: str, image: str) -> dict[str, str]:
    """The sources of the image in force. An empty `image` means the one of the manifest's Dockerfile.

    An image that we did not build is its own source: the bottle runs what its name stood for at the start.
    """
    running = _image_of_container(client, repository, image)
    found = find(client, running or image or repository) or _newest(client, repository)
    own = {image: running} if image and running else {}
    return {**own, **read(found.labels.get(LABEL, "") if found else "")}


def _image_of_container(client: DockerClient, repository: str, image: str) -> str:
    """The image that the container runs, but not where a bottle was rebuilt while it was stopped."""
    try:
        attributes = client.containers.get(repository).attrs
    except NotFound:
        return ""
    is_rebuilt = image.startswith(f"{repository}:")
    return str(attributes["Image"]) if attributes["State"]["Running"] or not is_rebuilt else ""


def _newest(client: DockerClient, repository: str) -> Any:
    made = [image for image in client.images.list(name=repository) if LABEL in image.labels]
    return max(made, key=lambda image: moment(image.attrs["Created"]) or 0.0, default=None)


def moved(last: Mapping[str, str], present: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each name that stands for another image than before."""
    for name, image in present.items():
        if last.get(name, image) != image:
            yield (
                f"moved tag: {name} is another image than the bottle's present one was built on: "
                f"{_short(image)}, so far {_short(last[name])}"
            )


def _short(image: str) -> str:
    """The short id, as engines list it."""
    return image.removeprefix("sha256:")[:12]
