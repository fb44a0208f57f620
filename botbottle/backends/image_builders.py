"""Builds, verifies, retains and prunes the images of a bottle that come from approved Dockerfiles."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Protocol

from botbottle.backends.base import Progress, Unavailable
from botbottle.core.plan_types import Plan

_CLASSES = {"docker": ("docker.build", "DockerImages"), "local": ("local.rootfs_build", "LocalImages")}


def is_built(backend: str) -> bool:
    """Whether images of this backend's bottles are built here."""
    return backend in _CLASSES


class Images(Protocol):
    """The images of one bottle. Failures are BackendErrors."""

    def build(self, text: str, progress: Progress, *, image: str) -> str:
        """Build an image, or root filesystem, from a Dockerfile's text. `image` is the one in force.

        Reports the names that stand for other images than when that one was built.
        """

    def compare(self, text: str, image: str, seconds: float) -> list[str]:
        """Report what `build` would report about the names in the text, and which would make it fail.

        Asks the engine and builds nothing. An engine that is silent for `seconds` is Unavailable.
        """

    def verify(self, image: str, digest: str) -> None:
        """Raises BackendError unless the image was built from the text with this digest."""

    def retain(self, plan: Plan) -> str:
        """Return a name under which the present image stays, to go back to. Empty: the manifest's own."""

    def prune(self, retained: set[str]) -> None: ...

    def clear(self) -> None:
        """Remove what a killed build left."""


def images(backend: str, home: Path, slug: str) -> Images:
    """The images of one bottle. Raises Unavailable for a backend that builds no images."""
    if not is_built(backend):
        raise Unavailable(
            f"Bottles of the backend {backend} are not rebuilt. Build the image yourself, name it in the "
            "manifest, and start the bottle again."
        )
    module, name = _CLASSES[backend]
    made: Images = getattr(import_module(f"{__package__}.{module}"), name)(home, slug)
    return made
