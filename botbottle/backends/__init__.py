"""Where bottles run. One folder per kind of sandbox, behind the interface in base.py.

To add a backend, add a folder with its class and an entry here. Code outside this package does not compare
names.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from botbottle.backends.base import Backend
from botbottle.core.plan_types import BackendError


class Traits:
    """How a kind of backend differs from the others. Known without importing it, which can be slow.

    (A plain class: each start of a bottle imports this.)
    """

    def __init__(
        self,
        class_name: str,
        *,
        names_images: bool = False,
        builds_dockerfiles: bool = False,
        needs_image: bool = True,
        limits_processes: bool = True,
        needs_cgroups: bool = False,
        has_cacheable_plans: bool = False,
        runs_as_operator: bool = False,
    ) -> None:
        self.class_name = class_name
        self.names_images = names_images  # an image is a name in an engine; else a path of this host
        self.builds_dockerfiles = builds_dockerfiles  # the manifest may name one
        self.needs_image = needs_image  # else a bottle can run on the programs of this host
        self.limits_processes = limits_processes  # and their descriptors
        self.needs_cgroups = needs_cgroups  # without a control group, some limits are weaker
        self.has_cacheable_plans = has_cacheable_plans  # all that a plan is made from are files of this host
        self.runs_as_operator = runs_as_operator  # on the host, the bottle's user is who started it


_TRAITS = {
    "local": Traits(
        "LocalBackend", needs_image=False, needs_cgroups=True, has_cacheable_plans=True, runs_as_operator=True
    ),
    "docker": Traits("DockerBackend", names_images=True, builds_dockerfiles=True),
    "smolmachines": Traits("SmolmachinesBackend", limits_processes=False),
}
NAMES = tuple(_TRAITS)


def traits(name: str) -> Traits:
    """Raises BackendError."""
    if name not in _TRAITS:
        raise BackendError(f"There is no backend {name!r}. Choose one of {', '.join(NAMES)}.")
    return _TRAITS[name]


def get(name: str, home: Path) -> Backend:
    """Return the backend by name, imported on first use. Raises BackendError."""
    class_name = traits(name).class_name
    backend: Backend = getattr(import_module(f"{__name__}.{name}.backend"), class_name)(home)
    return backend
