"""This home among those that share a database. Only its own proxy serves a home's bottles."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from secrets import token_hex

from django.conf import settings

from botbottle.core.home import made_once
from botbottle.models import Bottle
from egress.models import Publication


def home_id() -> str:
    """This home's name in the database."""
    return made_once(Path(settings.BOTTLE_HOME) / "home_id", lambda: token_hex(16))


def home_of(bottle: Bottle) -> str:
    """The home that the bottle was created in. A bottle never moves to another one."""
    if Bottle.publication.is_cached(bottle):  # other columns may be out of date, but not this one
        return bottle.publication.home
    return Publication.objects.values_list("home", flat=True).get(bottle=bottle)


def is_local(bottle: Bottle) -> bool:
    return home_of(bottle) == home_id()


def local_ids(bottle_ids: Iterable[int]) -> set[int]:
    """The ids of those bottles that belong to this home."""
    local = Publication.objects.filter(bottle__in=set(bottle_ids), home=home_id())
    return set(local.values_list("bottle", flat=True))


def other_homes() -> set[str]:
    """The other homes that have bottles in this database."""
    living = Publication.objects.exclude(bottle__state=Bottle.State.DELETED)
    return set(living.exclude(home=home_id()).values_list("home", flat=True).distinct())


def bottle_directory(bottle: Bottle) -> Path:
    return Path(settings.BOTTLE_HOME) / "bottles" / bottle.slug
