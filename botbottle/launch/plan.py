"""Compiles a manifest into a plan: everything that is decided before a bottle starts. Runs nothing.

A plan contains the source of a secret variable, never its value.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from botbottle import backends
from botbottle.core.plan_types import (
    CONFIG_INSIDE,
    SOCKETS_INSIDE,
    TRUST_INSIDE,
    WORKSPACE_INSIDE,
    File,
    Mount,
    Plan,
    Variable,
)
from botbottle.launch import host_paths, plan_cache
from botbottle.launch.host_paths import WORKSPACE
from botbottle.provision import agents, context_hooks, home_files, mount_sources, variables

if TYPE_CHECKING:
    from botbottle.manifest.reader import Manifest

TRUST = "ca"  # in the bottle's directory

Existing = Callable[[str], str | None]  # a text file of the image, by its path in the bottle


def compile(
    manifest: Manifest, *, slug: str, home: Path, existing: Existing, extra_command: tuple[str, ...] = ()
) -> Plan:
    """Compile a manifest. `home` is BOTTLE_HOME; `extra_command` replaces the manifest's command.

    Raises BadManifest, or BadConfiguration when an agent's own configuration cannot be merged. The bottle's
    own workspace may not exist yet: the start creates it.
    """
    directory = Path(os.path.realpath(home)) / "bottles" / slug
    mounts = _mounts(manifest, directory, home)
    host_paths.check(manifest, slug=slug, home=home)
    return Plan(
        slug=slug,
        backend=manifest.backend,
        directory=str(directory),
        image=_image(manifest, home),
        dockerfile=manifest.dockerfile,
        agent=manifest.agent,
        command=extra_command or _command(manifest),
        variables=_variables(manifest),
        files=_files(manifest, home, existing),
        mounts=mounts,
        limits=manifest.limits,
        supervise=manifest.supervise,
    )


def _command(manifest: Manifest) -> tuple[str, ...]:
    return agents.command(manifest.agent) if manifest.command is None else manifest.command


def _mounts(manifest: Manifest, directory: Path, home: Path) -> tuple[Mount, ...]:
    workspace = _workspace(manifest, directory, home)
    extra: list[Mount] = []
    for index, mount in enumerate(manifest.mounts):
        key = f"mounts[{index}]"
        for other in extra:
            if Path(mount.target).is_relative_to(other.target) or Path(other.target).is_relative_to(
                mount.target
            ):
                raise manifest.refuse(f"{key}.target", f"{mount.target} and {other.target} cover each other.")
        extra.append(
            Mount(_source(manifest, f"{key}.path", mount.source, home), mount.target, mount.writable)
        )
    own = [
        Mount(str(directory / "sockets"), SOCKETS_INSIDE),
        Mount(str(directory / "current-config"), CONFIG_INSIDE),
        Mount(str(directory / TRUST), TRUST_INSIDE),
    ]
    return (workspace, *own, *extra)


def _workspace(manifest: Manifest, directory: Path, home: Path) -> Mount:
    own = directory / WORKSPACE
    writable = manifest.workspace.writable
    if not manifest.workspace.path:
        return Mount(str(own), WORKSPACE_INSIDE, writable)
    source = _source(manifest, "workspace.path", manifest.workspace.path, home, own=own)
    if not Path(source).is_dir():
        raise manifest.refuse("workspace.path", f"{source} is not a directory.")
    return Mount(source, WORKSPACE_INSIDE, writable)


def _source(manifest: Manifest, key: str, path: str, home: Path, *, own: Path | None = None) -> str:
    try:
        return mount_sources.check_source(path, home=home, own=own)
    except ValueError as error:
        raise manifest.refuse(key, str(error)) from error


def _image(manifest: Manifest, home: Path) -> str:
    if not manifest.image or backends.traits(manifest.backend).names_images:
        return manifest.image
    return _source(manifest, "image", manifest.image, home)


def _variables(manifest: Manifest) -> dict[str, Variable]:
    own = variables.identity_variables() | variables.proxy_variables() | variables.trust_variables()
    defaults = {name: Variable(value) for name, value in variables.default_variables().items()}
    return defaults | dict(manifest.env) | {name: Variable(value) for name, value in own.items()}


def _files(manifest: Manifest, home: Path, existing: Existing) -> tuple[File, ...]:
    brought = {file.path: file for file in _home_files(manifest, home)}

    def seen(path: str) -> str | None:
        return brought[path].content if path in brought else existing(path)

    made = agents.files(
        manifest.agent,
        mcp_url=variables.MCP_URL,
        existing=seen,
        supervise=manifest.supervise,
        servers=tuple(manifest.mcp_servers),
    )
    files = brought | {file.path: file for file in made}
    if manifest.context and manifest.supervise:
        files |= {file.path: file for file in _context_hooks(manifest, files, existing)}
    for path in files:
        for index, mount in enumerate(manifest.mounts):
            if Path(path).is_relative_to(mount.target):
                raise manifest.refuse(f"mounts[{index}].target", f"{mount.target} would hide {path}.")
    return tuple(files.values())


def _context_hooks(manifest: Manifest, files: dict[str, File], existing: Existing) -> Iterator[File]:
    """Files that fetch the session context when the agent's session begins."""
    yield from context_hooks.files(manifest.agent)
    if manifest.agent == "claude":
        path = context_hooks.CLAUDE_SETTINGS
        settings = files[path].content if path in files else existing(path)
        yield File(path, context_hooks.claude_settings(settings))


def _home_files(manifest: Manifest, home: Path) -> tuple[File, ...]:
    if not manifest.home:
        return ()
    source = _source(manifest, "home", manifest.home, home)
    if not Path(source).is_dir():
        raise manifest.refuse("home", f"{source} is not a directory.")
    try:
        return home_files.home_files(Path(source))
    except ValueError as error:
        raise manifest.refuse("home", str(error)) from error


def cache(plan: Plan, manifest: Manifest) -> None:
    """Cache a compiled plan for the next start, where every input is a file of this host. Raises OSError.

    Call it after `provision.trust.write`: the trust files are among the inputs.
    """
    if not backends.traits(plan.backend).has_cacheable_plans or not manifest.path:
        return
    if (
        Path(manifest.path).read_text(encoding="utf-8") == manifest.text
    ):  # else it was edited since it was read
        plan_cache.write(plan, [manifest.path, *_inputs(plan, manifest)])


def _inputs(plan: Plan, manifest: Manifest) -> Iterator[str]:
    """Files and directories that the plan was made from, whether they exist or not."""
    directory = Path(plan.directory)
    trust = directory / TRUST
    yield from map(str, (directory / "ca.pem", trust / "bundle.pem"))
    if (trust / ".inputs").is_file():
        yield (trust / ".inputs").read_text(encoding="utf-8").splitlines()[-1]  # the host's public roots
    if manifest.home:
        yield from map(str, home_files.walked(Path(manifest.home), directories=True))
    yield from (plan.image + path for path in agents.paths() if plan.image)
