"""The life of a bottle's record: create, rotate its token, delete. One verb per change, audited."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.utils import timezone

from botbottle.models import Bottle, digest_token, new_token
from egress import store

from . import audit, decisions
from .errors import SuperviseError
from .models import Proposal


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
    """Raises BadBottle when the name is malformed or taken."""
    token = new_token()
    bottle = Bottle(slug=slug, backend=backend, token_digest=digest_token(token))
    try:
        bottle.full_clean(validate_unique=False, validate_constraints=False)
    except ValidationError as error:
        raise BadBottle(" ".join(error.messages)) from error
    try:
        with transaction.atomic():
            bottle.save()
            store.create_first(bottle, author=author)
            audit.append("bottle created", actor_name=author, bottle_slug=slug)
    except IntegrityError as error:
        raise BadBottle(f"There is a bottle {slug!r} already. Choose another name, or delete it.") from error
    with suppress(store.NotPublished):  # noted, and tried again by the caretaker; until then all is denied
        store.publish(bottle)
    return Credentials(bottle, token)


def get(slug: str) -> Bottle:
    bottle = living().filter(slug=slug).first()
    if bottle is None:
        raise NoSuchBottle(f"There is no bottle {slug!r}. 'bottle list' shows the ones there are.")
    return bottle


def living() -> QuerySet[Bottle]:
    return Bottle.objects.exclude(state=Bottle.State.DELETED)


def rotate_token(slug: str, *, author: str) -> Credentials:
    """A new token; the old one stops working with the commit."""
    token = new_token()
    with transaction.atomic():
        bottle = get(slug)
        Bottle.objects.filter(pk=bottle.pk).update(
            token_digest=digest_token(token), token_rotated_at=timezone.now()
        )
        store.must_publish_again(bottle)
        audit.append("token rotated", actor_name=author, bottle_slug=slug)
    with suppress(store.NotPublished):
        store.publish(bottle)
    return Credentials(bottle, token)


def delete(slug: str, *, author: str) -> int:
    """End the bottle: its token and routes stop, open proposals expire, its history stays.

    Returns how many proposals expired.
    """
    with transaction.atomic():
        store.lock(get(slug))
        bottle = get(slug)  # again: somebody else may have deleted it while we waited for the lock
        pending = Proposal.objects.filter(bottle=bottle, status=Proposal.Status.PENDING)
        open_ids = list(pending.values_list("pk", flat=True))
        for pk in open_ids:
            decisions.expire(pk, reason="The bottle was deleted.")
        Bottle.objects.filter(pk=bottle.pk).update(state=Bottle.State.DELETED)
        audit.append("bottle deleted", actor_name=author, bottle_slug=slug)
    with suppress(store.NotPublished):
        store.unpublish(bottle)
    return len(open_ids)
