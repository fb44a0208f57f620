"""A bottle's record: create, update at a start, rotate its token, delete. Each change is audited.

`supervise.bottles.lifecycle` starts and stops the sandbox; deleting the record ends it too.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.utils import timezone

from botbottle.backends import secret_variables
from botbottle.core.plan_types import BackendError
from botbottle.launch import journal, plan_cache
from botbottle.manifest.reader import Manifest
from botbottle.models import Bottle, digest_token, new_token, valid_slug
from egress.models import RouteTableVersion
from egress.policy.merge import merge_gate_host, merge_route
from egress.tables import homes, publishing, versions
from supervise import audit, events
from supervise.bottles import build_log, reconcile
from supervise.errors import SuperviseError
from supervise.models import Proposal
from supervise.proposals import apply, decisions

MANIFEST = "manifest"  # the author of a bottle's first routes


class NoSuchBottle(SuperviseError):
    code = "no_such_bottle"


class BadBottle(SuperviseError):
    """The name is taken or malformed."""

    code = "bad_bottle"


@dataclass(frozen=True, slots=True)
class Credentials:
    """A bottle and its token, which exists in clear only here and only once."""

    bottle: Bottle
    token: str


def create(slug: str, *, author: str, backend: str = Bottle.Backend.LOCAL) -> Credentials:
    """Create a bottle. Raises BadBottle when the name is malformed or taken."""
    token = new_token()
    bottle = Bottle(slug=slug, backend=backend, token_digest=digest_token(token))
    try:
        bottle.full_clean(validate_unique=False, validate_constraints=False)
    except ValidationError as error:
        raise BadBottle(" ".join(error.messages)) from error
    try:
        with transaction.atomic():
            bottle.save()
            versions.create_first(bottle, author=author)
            audit.append("bottle created", actor_name=author, bottle_slug=slug)
    except IntegrityError as error:
        raise BadBottle(f"There is a bottle {slug!r} already. Choose another name, or delete it.") from error
    apply.publish_table(bottle)  # if it fails, everything is denied until the background job's retry
    return Credentials(bottle, token)


def check_name(slug: str) -> str:
    """Raises BadBottle. Names become paths, so they are checked before any lookup."""
    try:
        valid_slug(slug)
    except ValidationError as error:
        raise BadBottle(" ".join(error.messages)) from error
    return slug


def get(slug: str) -> Bottle:
    bottle = living().filter(slug=slug).first()
    if bottle is None:
        raise NoSuchBottle(f"There is no bottle {slug!r}. 'bottle list' shows the ones there are.")
    return bottle


def living() -> QuerySet[Bottle]:
    return Bottle.objects.exclude(state=Bottle.State.DELETED)


def record_manifest(slug: str, manifest: Manifest, *, author: str) -> Bottle:
    """Create or update the bottle's row at a start. The first start also opens the manifest's routes.

    Later ones do not: the table is the operators', and a route they removed must not return with a restart.
    """
    if not living().filter(slug=slug).exists():
        create(slug, author=author, backend=manifest.backend)
    with transaction.atomic():
        newest = versions.lock(get(slug))
        bottle = get(slug)
        if not bottle.manifest:
            _open_first_routes(newest, manifest, author)
        if bottle.supervise != manifest.supervise:
            publishing.must_publish_again(bottle)
        Bottle.objects.filter(pk=bottle.pk).update(
            manifest=manifest.text, backend=manifest.backend, supervise=manifest.supervise
        )
    return get(slug)


def _open_first_routes(newest: RouteTableVersion, manifest: Manifest, author: str) -> None:
    table, now = newest.table, timezone.now()
    for route in manifest.routes:
        table = merge_route(table, route, now=now, operator=True).table
    for host in manifest.gate_hosts:
        table = merge_gate_host(table, host).table
    if table != newest.table:
        made = versions.append(newest, table, author=MANIFEST, cause="routes of the manifest")
        audit.append(
            "manifest's routes given",
            actor_name=author,
            bottle_slug=newest.bottle.slug,
            details={"version": made.version},
        )


def rotate_token(slug: str, *, author: str) -> Credentials:
    """Make a new token; the old one stops working with the commit."""
    token = new_token()
    with transaction.atomic():
        bottle = get(slug)
        Bottle.objects.filter(pk=bottle.pk).update(
            token_digest=digest_token(token), token_rotated_at=timezone.now()
        )
        publishing.must_publish_again(bottle)
        audit.append("token rotated", actor_name=author, bottle_slug=slug)
    apply.publish_table(bottle)
    return Credentials(bottle, token)


def delete(slug: str, *, author: str) -> int:
    """End the bottle: its sandbox, token and routes stop, open proposals expire, its history stays.

    Returns the number of expired proposals. A sandbox whose backend does not answer loses its network with
    the rest, and is removed as an orphan once the backend answers.
    """
    left_behind = _end_sandbox(get(slug), author)
    with transaction.atomic():
        versions.lock(get(slug))
        bottle = get(slug)  # again: it may have been deleted while we waited for the lock
        pending = Proposal.objects.filter(bottle=bottle, status=Proposal.Status.PENDING)
        open_ids = list(pending.values_list("pk", flat=True))
        for pk in open_ids:
            decisions.expire(pk, reason="The bottle was deleted.")
        Bottle.objects.filter(pk=bottle.pk).update(state=Bottle.State.DELETED)
        details = {"sandbox": left_behind} if left_behind else {}
        audit.append("bottle deleted", actor_name=author, bottle_slug=slug, details=details)
        events.announce_bottle(bottle, Bottle.State.DELETED)
    apply.unpublish_table(bottle)
    return len(open_ids)


def _end_sandbox(bottle: Bottle, author: str) -> str:
    """Remove the sandbox, so that a later bottle of the same name inherits nothing. Returns any problem."""
    directory = homes.bottle_directory(bottle)
    if not journal.exists(directory):
        return ""  # it was never started here
    problem = ""
    try:
        backend = reconcile.backend_of(bottle)
        if backend.life(bottle.slug).alive:
            journal.append(directory, journal.STOPPING, who=author)
        backend.remove(bottle.slug)
    except BackendError as error:
        problem = str(error)
    reconcile.reconcile_bottle(bottle)
    for name in (plan_cache.PLAN_FILE, plan_cache.COMMAND_FILE, build_log.STARTING):
        (directory / name).unlink(missing_ok=True)
    secret_variables.forget(directory / "run")
    journal.forget(directory)
    return problem
