"""How much of this home's disk each bottle uses: its directory, and other places that it may write to."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from botbottle.core import disk_usage
from botbottle.core.plan_types import BackendError
from botbottle.manifest import reader as manifests
from botbottle.models import Bottle
from egress.tables import homes
from supervise.bottles.lifecycle import manifest_path
from supervise.bottles.reconcile import backend_of
from supervise.bottles.records import living

MEASURING_SECONDS = 5.0  # for all bottles together
LEAST_SECONDS = 0.2  # for each


@dataclass(frozen=True, slots=True)
class Share:
    slug: str
    is_running: bool
    total: int
    recent: int  # of recently changed files
    is_complete: bool  # False: `total` is a lower limit
    hides: bool  # some of it cannot be read


def shares(*, since: float) -> list[Share]:
    """The shares of all bottles, the largest first. `since` is when "recent" begins, by the wall clock."""
    local = list(living().filter(publication__home=homes.home_id()).defer("dockerfile"))
    seconds = max(LEAST_SECONDS, MEASURING_SECONDS / max(1, len(local)))
    found = [_share(bottle, since, time.monotonic() + seconds) for bottle in local]
    return sorted(found, key=lambda share: -share.total)


def _share(bottle: Bottle, since: float, until: float) -> Share:
    device = Path(settings.BOTTLE_HOME).stat().st_dev
    usage = disk_usage.Usage(device=device, since=since, until=until)
    for directory in sorted(set(_directories(bottle))):
        usage.add_directory(directory)
    is_running = bottle.state == Bottle.State.RUNNING
    if is_running:
        for process in _processes(bottle):
            usage.add_deleted_files_of(process)
    return Share(bottle.slug, is_running, usage.total, usage.recent, usage.is_complete, usage.hides)


def _directories(bottle: Bottle) -> Iterator[str]:
    """The directories that the bottle, or the host on its behalf, writes to."""
    own = homes.bottle_directory(bottle)
    yield str(own)
    try:
        manifest = manifests.parse(bottle.manifest, bottle.slug, path=manifest_path(bottle.slug))
    except BackendError:  # there is no manifest, or one of another version
        return
    places = [mount.source for mount in manifest.mounts if mount.writable]
    if manifest.workspace.path and manifest.workspace.writable:
        places.append(manifest.workspace.path)
    yield from (place for place in places if not Path(place).is_relative_to(own))


def _processes(bottle: Bottle) -> list[int]:
    """The bottle's processes, which are children of a supervisor on this host; of a container, none."""
    try:
        pid = backend_of(bottle).life(bottle.slug).pid
    except BackendError:
        return []
    return disk_usage.family(pid) if pid else []
