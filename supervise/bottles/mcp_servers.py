"""MCP servers inside bottles: which there are, their condition, and an operator's stop, start and restart.

A host process per bottle runs them (`botbottle.mcp_servers`); what it reports is saved in the database here.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import AnonymousUser, User
from django.db import transaction

from botbottle.core.sanitize import without_nul
from botbottle.launch import journal
from botbottle.manifest import reader as manifests
from botbottle.manifest.mcp_servers import Spec
from botbottle.manifest.reader import BadManifest
from botbottle.mcp_servers import host
from botbottle.models import Bottle
from egress.tables import homes
from supervise import audit
from supervise.access import permissions
from supervise.bottles import reconcile
from supervise.bottles import records as bottles
from supervise.bottles.lifecycle import manifest_path
from supervise.errors import NotPermitted, SuperviseError
from supervise.models import ManagedServer

log = logging.getLogger(__name__)
VERBS = ("start", "stop", "restart")
PAST = {"start": "started", "stop": "stopped", "restart": "restarted"}
ANSWER_SECONDS = 60.0
SPAWN_SECONDS = 5.0  # between two attempts for one bottle
_spawned: dict[int, float] = {}
_spawning = threading.Lock()


class NoSuchServer(SuperviseError):
    """The bottle's manifest names no such server."""

    code = "no_such_server"


class ServerDown(SuperviseError):
    """The bottle's host process does not answer."""

    code = "servers_down"


def servers_of(bottle: Bottle) -> Mapping[str, Spec]:
    """The servers in the manifest that the bottle was started with."""
    return _servers(bottle.manifest, bottle.slug) if bottle.manifest else {}


@lru_cache(maxsize=256)
def _servers(text: str, slug: str) -> Mapping[str, Spec]:
    try:
        return manifests.parse(text, slug, path=manifest_path(slug)).mcp_servers
    except BadManifest:  # of an older version, which had other keys
        return {}


def run_directory(bottle: Bottle) -> Path:
    return homes.bottle_directory(bottle) / "run"


# --- The host process


def maintain() -> None:
    """Start the host process of every running bottle, and sync the rows. Each home does this for its own
    bottles.
    """
    local = bottles.living().filter(publication__home=homes.home_id())
    for bottle in local.exclude(manifest="").defer("dockerfile"):
        if not servers_of(bottle) and not bottle.managed_servers.exists():
            continue
        try:
            if bottle.state == Bottle.State.RUNNING:
                ensure(bottle)
            sync(bottle)
        except Exception:
            log.exception("The MCP servers of bottle %s could not be checked.", bottle.slug)


def ensure(bottle: Bottle) -> None:
    """Make sure that the bottle's host process runs, or is starting. The process's own lock excludes a second
    one.
    """
    if not servers_of(bottle) or host.lives(run_directory(bottle)):
        return
    with _spawning:
        if time.monotonic() < _spawned.get(bottle.pk, -SPAWN_SECONDS) + SPAWN_SECONDS:
            return
        _spawned[bottle.pk] = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "botbottle.mcp_servers"],
        cwd=settings.BASE_DIR,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # it survives this process
    )
    assert process.stdin is not None  # noqa: S101 - asked for
    with process.stdin as order:
        order.write(json.dumps(_order(bottle)).encode())
    threading.Thread(target=process.wait, name=f"servers-{bottle.slug}", daemon=True).start()


def _order(bottle: Bottle) -> dict[str, Any]:
    path = manifest_path(bottle.slug)
    workspace = manifests.parse(bottle.manifest, bottle.slug, path=path).workspace.path
    return {
        "slug": bottle.slug,
        "home": str(settings.BOTTLE_HOME),
        "manifest": bottle.manifest,
        "path": str(path),
        "workspace": os.path.realpath(workspace or homes.bottle_directory(bottle) / "workspace"),
        "roots": settings.BOTTLE_SERVER_ROOTS,
    }


def is_up(bottle: Bottle) -> bool:
    """Whether the bottle runs, or is about to. A start may not be in the database yet."""
    up = (Bottle.State.STARTING, Bottle.State.RUNNING)
    if bottle.state in up or not journal.exists(homes.bottle_directory(bottle)):
        return True
    return reconcile.reconcile_bottle(bottle).state in up


# --- Rows


def sync(bottle: Bottle) -> None:
    """Make the rows match what the host process reports; without a process, nothing runs."""
    run, specs = run_directory(bottle), servers_of(bottle)
    alive, known = host.lives(run), host.known(run)
    rows = {row.name: row for row in bottle.managed_servers.all()}
    for name in rows.keys() - specs.keys():
        rows[name].delete()
    for name, spec in specs.items():
        # Another process may do the same at this moment: only one of them creates the row.
        row = rows.get(name) or ManagedServer.objects.get_or_create(bottle=bottle, name=name)[0]
        before = _facts(row)
        _fill(row, known.get(name) or {}, spec, alive=alive)
        if _facts(row) != before:
            row.save()


def _fill(row: ManagedServer, state: Mapping[str, Any], spec: Spec, *, alive: bool) -> None:
    """Copy what the host process reports. It is trusted; stderr was written inside the bottle."""
    now = state.get("condition")
    row.condition = (
        now if alive and now in ManagedServer.Condition.values else ManagedServer.Condition.STOPPED
    )
    row.is_wanted = bool(state.get("wanted", True))
    row.phase, row.problem = str(state.get("phase", ""))[:20], without_nul(str(state.get("problem", "")))
    row.exit_code, row.stderr = state.get("exit_code"), without_nul(str(state.get("stderr", "")))
    row.env_names, row.limits = sorted(spec.env), str(state.get("limits", ""))[:200]
    row.restarts, row.dropped_lines = int(state.get("restarts", 0)), int(state.get("dropped", 0))
    started = state.get("started_at")
    row.started_at = datetime.fromtimestamp(started, UTC) if started else None


def _facts(row: ManagedServer) -> list[object]:
    return [getattr(row, field.attname) for field in row._meta.concrete_fields if field.name != "updated_at"]


# --- Actions


def act(verb: str, slug: str, name: str, *, author: str) -> None:
    """Stop, start or restart one server; the others and the bottle keep running.

    Raises NoSuchBottle, NoSuchServer, ServerDown.
    """
    bottle = bottles.get(slug)
    check_name(bottle, name)
    ensure(bottle)
    answer = _ask(bottle, {"control": verb, "server": name})
    if not answer.get("ok"):
        raise ServerDown(f"{name} of {slug} could not be {PAST[verb]}.")
    with transaction.atomic():
        audit.append(
            f"mcp server {PAST[verb]}", actor_name=author, bottle_slug=slug, details={"server": name}
        )
    sync(bottle)


def connect(bottle: Bottle, name: str) -> None:
    """Connect this process's standard input and output to one server, with the rights of the bottle's agent.

    Calls that an operator decides wait. Returns at the end. Raises NoSuchServer, ServerDown.
    """
    from botbottle.mcp_servers import stdio  # noqa: PLC0415 - a client's library, used only here

    check_name(bottle, name)
    try:
        code, reason = stdio.bridge_stdio(homes.bottle_directory(bottle) / "sockets" / "agent.sock", name)
    except OSError as error:
        raise ServerDown(f"Nothing listens for the bottle {bottle.slug}. Is bot-bottle up?") from error
    if code not in stdio.WELL:
        raise ServerDown(f"{name} of {bottle.slug} ended the connection ({code}). {reason}".strip())


def check_name(bottle: Bottle, name: str) -> None:
    if name not in servers_of(bottle):
        raise NoSuchServer(f"The bottle {bottle.slug!r} has no MCP server {name!r}. Its manifest names them.")


def act_for(verb: str, server: ManagedServer, *, actor: User | AnonymousUser) -> None:
    """Do the same for a signed-in operator. Raises NotPermitted, and what `act` raises."""
    if not permissions.may_run_for(actor, server.bottle):
        raise NotPermitted("Starting and stopping a bottle's MCP servers needs the permission 'run_bottle'.")
    act(verb, server.bottle.slug, server.name, author=actor.get_username())


def _ask(bottle: Bottle, question: Mapping[str, Any]) -> dict[str, Any]:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(ANSWER_SECONDS)
            directory = os.open(run_directory(bottle), os.O_PATH | os.O_DIRECTORY)
            try:
                connection.connect(f"/proc/self/fd/{directory}/{host.SOCKET}")
            finally:
                os.close(directory)
            connection.sendall(json.dumps(question).encode() + b"\n")
            with connection.makefile("rb") as lines:
                answer: dict[str, Any] = json.loads(lines.readline())
                return answer
    except (OSError, ValueError) as error:
        raise ServerDown(
            f"The MCP servers of {bottle.slug} are not being served. Is the bottle running? Try again."
        ) from error
