"""Where bottles run. One folder per kind, behind the interface in base.py."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from botbottle.backends.base import Backend
from botbottle.core.plan_types import BackendError

_CLASSES = {"local": "LocalBackend", "docker": "DockerBackend", "smolmachines": "SmolmachinesBackend"}
NAMES = tuple(_CLASSES)


def get(name: str, home: Path) -> Backend:
    """The backend by name, imported when it is first wanted: each has dependencies of its own."""
    if name not in _CLASSES:
        raise BackendError(f"There is no backend {name!r}. Choose one of {', '.join(NAMES)}.")
    backend: Backend = getattr(import_module(f"{__name__}.{name}.backend"), _CLASSES[name])(home)
    return backend
