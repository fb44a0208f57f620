"""Which image a bottle runs: the manifest's own, or the newest one that a rebuild made live.

Here are the reading side and the queue; the work is done by `rebuild` in a process of its own.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from django.conf import settings
from django.db import transaction
from django.db.models import F, OuterRef, Q, Subquery
from django.utils import timezone

from botbottle import backends
from botbottle.backends import image_builders
from botbottle.dockerfiles.build_rules import check_rebuildable
from botbottle.dockerfiles.parse import check_dockerfile, digest_of
from botbottle.manifest.reader import Manifest
from botbottle.models import Bottle
from egress.models import TrafficRecord
from egress.tables import homes
from supervise import events
from supervise.digests import digest
from supervise.models import Decision, Rebuild

Phase = Rebuild.Phase
OPEN = (Phase.QUEUED, Phase.SNAPSHOT, Phase.BUILDING, Phase.CANARY, Phase.SWAPPING)
CONFIG, DOCKERFILE = "current-config", "Dockerfile"
MOST_REFUSED = 20
STARTING = timedelta(seconds=60)  # a process may need this long to start, on a busy host


@dataclass(frozen=True, slots=True)
class Image:
    """`name` is empty for the manifest's own image. The agent is shown `dockerfile` as the one in force."""

    name: str
    dockerfile: str


def in_force(slug: str, manifest: Manifest) -> Image:
    """The image in force: a rebuild's, while the manifest names the same image as then. Raises OSError."""
    rebuild = newest_live(slug)
    if rebuild is not None and rebuild.made_for == source_of(manifest):
        return Image(rebuild.image, rebuild.dockerfile or dockerfile_of(manifest))
    return Image("", dockerfile_of(manifest))


def newest_live(slug: str) -> Rebuild | None:
    living = Rebuild.objects.filter(bottle__slug=slug, phase=Phase.LIVE)
    return living.exclude(bottle__state=Bottle.State.DELETED).order_by("-ended_at", "-pk").first()


def present_of(bottles: Iterable[Bottle]) -> dict[int, str]:
    """The name of the image that each bottle's recorded Dockerfile is about, by one query; see Image."""
    by_id = {bottle.pk: bottle for bottle in bottles}
    living = Rebuild.objects.filter(bottle=OuterRef("bottle"), phase=Phase.LIVE).order_by("-ended_at", "-pk")
    newest_rows = Rebuild.objects.filter(bottle__in=by_id, pk=Subquery(living.values("pk")[:1]))
    newest = {row[0]: row[1:] for row in newest_rows.values_list("bottle", "image", "dockerfile")}
    found = {}
    for pk, bottle in by_id.items():
        image, text = newest.get(pk, ("", None))
        # A start notes its image, and a swap of a stopped bottle does not; only the text is always right.
        found[pk] = image if text == bottle.dockerfile else bottle.image
    return found


def source_of(manifest: Manifest) -> str:
    """Digest what the operator wrote about the image. If it changes, the manifest counts. Raises OSError."""
    written = Path(manifest.dockerfile).read_bytes() if manifest.dockerfile else b""
    content = hashlib.sha256(written).hexdigest()
    return digest([manifest.backend, manifest.image, manifest.dockerfile, content])


def dockerfile_of(manifest: Manifest) -> str:
    """The manifest's own image as a Dockerfile. Raises OSError."""
    if manifest.dockerfile:
        return Path(manifest.dockerfile).read_text(encoding="utf-8", errors="replace")
    return f"FROM {manifest.image}\n" if backends.traits(manifest.backend).names_images else ""


def show_dockerfile(bottle: Bottle, text: str) -> None:
    """Write the Dockerfile in force where the agent reads it. Raises OSError."""
    directory = homes.bottle_directory(bottle) / CONFIG
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o755)
    temporary = directory / f".{DOCKERFILE}.{os.getpid()}"
    temporary.write_text(text, encoding="utf-8")
    temporary.chmod(0o644)  # read by the bottle's user, whatever its id
    temporary.replace(directory / DOCKERFILE)
    Bottle.objects.filter(pk=bottle.pk).update(dockerfile=text)


def can_be_rebuilt(bottle: Bottle) -> bool:
    """Whether the bottle has a sandbox that can be replaced; otherwise an approval is only recorded."""
    return bool(bottle.manifest)


def check_dockerfile_for(bottle: Bottle, text: str) -> None:
    """Raises BadDockerfile for a text that could only fail after an approval."""
    check_dockerfile(text)
    if can_be_rebuilt(bottle) and image_builders.is_built(bottle.backend):
        check_rebuildable(text)


def queue(decision: Decision) -> Rebuild:
    """Queue a rebuild, in the transaction of the decision. `launch` comes after the commit."""
    text = (decision.final_payload or {})["dockerfile"]
    return Rebuild.objects.create(
        bottle=decision.proposal.bottle,
        decision=decision,
        author=decision.actor_name,
        dockerfile=text,
        digest=digest_of(text),
    )


def launch(rebuild: Rebuild) -> None:
    """Start the rebuild's process, unless one is starting: an operator and the background job may both try.

    The background job tries again if it cannot be started. Another home's bottle is rebuilt in that home.
    """
    if not homes.is_local(rebuild.bottle):
        events.call_home(homes.home_of(rebuild.bottle))
        return
    now = timezone.now()
    mine = Rebuild.objects.filter(Q(launched_at=None) | Q(launched_at__lt=now - STARTING), pk=rebuild.pk)
    if not mine.update(attempts=F("attempts") + 1, launched_at=now):
        return
    command = [sys.executable, str(settings.BASE_DIR / "manage.py"), "rebuild", str(rebuild.pk)]
    errors = directory_of(rebuild) / f"{rebuild.pk}.errors"
    errors.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with errors.open("ab") as output:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and script, and a number
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # how it went is in its row
            stderr=output,
            start_new_session=True,  # it outlives this process
        )
    threading.Thread(target=process.wait, name=f"rebuild-{rebuild.pk}", daemon=True).start()


def is_starting(rebuild: Rebuild) -> bool:
    return rebuild.launched_at is not None and rebuild.launched_at >= timezone.now() - STARTING


def has_started(rebuild: Rebuild) -> None:
    """Record that the process runs: from here on, the bottle's lock says so."""
    Rebuild.objects.filter(pk=rebuild.pk).update(launched_at=None)


def newest_of(decision: Decision) -> Rebuild | None:
    return Rebuild.objects.filter(decision=decision).order_by("-pk").first()


def enter(rebuild: Rebuild, phase: str, **columns: object) -> None:
    """Enter the next phase, and announce it to open pages."""
    with transaction.atomic():
        for name, value in {"phase": phase, **columns}.items():
            setattr(rebuild, name, value)
        rebuild.save(update_fields=["phase", *columns])
        if rebuild.decision is not None:
            events.announce("rebuilding", rebuild.decision.proposal, wake=False)
        events.announce_bottle(rebuild.bottle, rebuild.bottle.state)


def directory_of(rebuild: Rebuild) -> Path:
    return homes.bottle_directory(rebuild.bottle) / "rebuilds"


def log_path(rebuild: Rebuild) -> Path:
    return directory_of(rebuild) / f"{rebuild.pk}.log"


def progress_of(rebuild: Rebuild) -> str:
    """A text that changes when the panel, apart from the log, would look different; open pages compare it."""
    return f"{rebuild.phase}-{len(refused_hosts(rebuild))}"


def refused_hosts(rebuild: Rebuild) -> list[TrafficRecord]:
    """The requests that the proxy refused during the build, one for each host, with the ask for it."""
    if rebuild.build_started_at is None:
        return []
    refused = TrafficRecord.objects.filter(
        bottle=rebuild.bottle, verdict="refused", at__gte=rebuild.build_started_at, ask__isnull=False
    )
    if rebuild.build_ended_at is not None:
        refused = refused.filter(at__lte=rebuild.build_ended_at)
    found: dict[str, TrafficRecord] = {}
    for record in refused.order_by("at")[:500]:
        found.setdefault(record.host, record)
    return list(found.values())[:MOST_REFUSED]
