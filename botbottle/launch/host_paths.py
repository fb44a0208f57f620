"""Checks that no start follows a path that an agent can change, of its own bottle or of another.

Trust boundary: an agent can put links into a directory that it may write to, and a start follows links.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from botbottle import backends
from botbottle.launch import plan_cache
from botbottle.manifest import reader as manifests
from botbottle.manifest.reader import BadManifest, Manifest
from botbottle.provision import mount_sources

WORKSPACE = "workspace"  # in the bottle's directory


@dataclass(frozen=True, slots=True)
class Named:
    """A path of the host that a manifest names, and the key that names it."""

    key: str
    path: str
    mounted: bool = False  # else the host itself reads it


def check(manifest: Manifest, *, slug: str, home: Path) -> None:
    """Raises BadManifest for the later of two manifests that conflict: each is compared with all others."""
    bottles = Path(os.path.realpath(home)) / "bottles"
    own = str(bottles / slug / WORKSPACE)
    workspaces = {own, *map(str, bottles.glob(f"*/{WORKSPACE}"))}
    writable = {place.path for place in _written(manifest)}
    for named in _named(manifest):
        # Its own workspace may be named if no link is in the way: mount_sources.check_source checks that.
        others = workspaces - {own} if named.key == "workspace.path" else workspaces
        _refuse(manifest, named, writable | others)
    for other, neighbour in _neighbours(manifest, slug, bottles):
        for named in _named(manifest):
            places = {place.path for place in _written(neighbour)}
            _refuse(manifest, named, places, f"the agent of bottle {other!r}")
        for place in _written(manifest):
            _refuse_to_write(manifest, place, other, neighbour)


def _named(manifest: Manifest) -> Iterator[Named]:
    if manifest.path:
        yield Named("", manifest.path)
    if manifest.workspace.path:
        yield Named("workspace.path", manifest.workspace.path, mounted=True)
    for index, mount in enumerate(manifest.mounts):
        yield Named(f"mounts[{index}].path", mount.source, mounted=True)
    image = "" if backends.traits(manifest.backend).names_images else manifest.image
    for key, path in (("home", manifest.home), ("image", image), ("dockerfile", manifest.dockerfile)):
        if path:
            yield Named(key, path)
    variables = {f"env.{name}": variable for name, variable in manifest.env.items()}
    for server in manifest.mcp_servers.values():
        variables |= {f"mcp_servers.{server.name}.env.{name}": each for name, each in server.env.items()}
    for key, variable in variables.items():
        if variable.from_file:
            yield Named(f"{key}.from_file", variable.from_file)


def _written(manifest: Manifest) -> Iterator[Named]:
    """The writable paths, without bottles' own workspaces, which are known without a manifest."""
    if manifest.workspace.path and manifest.workspace.writable:
        yield Named("workspace.path", manifest.workspace.path)
    for index, mount in enumerate(manifest.mounts):
        if mount.writable:
            yield Named(f"mounts[{index}].path", mount.source)


def _neighbours(manifest: Manifest, slug: str, bottles: Path) -> Iterator[tuple[str, Manifest]]:
    """The other manifests in this directory whose bottles were ever started: an agent ran in them."""
    if not manifest.path:
        return
    for path in sorted(Path(manifest.path).parent.glob("*.yaml")):
        if path.stem != slug and (bottles / path.stem / plan_cache.COMMAND_FILE).exists():
            with suppress(BadManifest):  # it cannot be started in this state
                yield path.stem, manifests.load(path)


def _refuse(manifest: Manifest, named: Named, writable: set[str], who: str = "the agent") -> None:
    try:
        mount_sources.check_not_writable(named.path, sorted(writable), mounted=named.mounted, who=who)
    except ValueError as error:
        raise manifest.refuse(named.key, str(error)) from error


def _refuse_to_write(manifest: Manifest, place: Named, other: str, neighbour: Manifest) -> None:
    for named in _named(neighbour):
        try:
            mount_sources.check_not_writable(named.path, [place.path], mounted=named.mounted)
        except ValueError as error:
            what = f"{error} Bottle {other!r} names it as {named.key or 'its manifest'}."
            raise manifest.refuse(place.key, what) from error
