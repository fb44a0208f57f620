"""Operators' actions on a bottle's page. Each first checks the permission for this bottle."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.db import transaction

from botbottle.models import Bottle
from egress.models import RouteTableVersion
from egress.policy.merge import diff_tables
from egress.policy.table import RouteTable
from egress.tables import versions
from supervise import audit, events
from supervise.access.permissions import may_decide_for, may_run_for
from supervise.bottles import lifecycle
from supervise.bottles import records as bottles
from supervise.bottles.records import Credentials
from supervise.errors import BadAsk, NotPermitted, StaleReview, TooRisky
from supervise.proposals import apply, quorum
from supervise.proposals.risk import Level, route_risk


def rollback(slug: str, version: int, *, actor: User, seen_version: int) -> RouteTableVersion:
    """Make a new version with an old one's content, live once it is committed.

    Raises NoSuchBottle, NotPermitted, TooRisky; StaleReview when `seen_version` is not the newest; BadAsk
    when there is no such version or nothing to change.
    """
    bottle = bottles.get(slug)
    with transaction.atomic():
        newest = lock_as_seen(bottle, actor, seen_version)
        old = RouteTableVersion.objects.filter(bottle=bottle, version=version).first()
        if old is None:
            raise BadAsk(f"The bottle {slug} has no table version {version}.")
        if old.table == newest.table:
            raise BadAsk(f"Version {version} is identical to the current table.")
        check_quorum(newest.table, old.table)
        made = versions.roll_back(newest, version, author=actor.get_username())
        transaction.on_commit(lambda: apply.publish_table(bottle), robust=True)
        audit.append(
            "rolled back",
            actor_name=actor.get_username(),
            bottle_slug=slug,
            details={"from": newest.version, "to": version, "table_version": made.version},
        )
        events.announce_bottle(bottle, bottle.state)
    return made


def lock_as_seen(bottle: Bottle, actor: User, seen_version: int) -> RouteTableVersion:
    """The newest table, locked until the transaction ends. Raises NotPermitted, StaleReview."""
    if not may_decide_for(actor, bottle):
        raise NotPermitted("Changing what this bottle may reach needs the right to decide for it.")
    newest = versions.lock(bottle)
    if newest.version != seen_version:
        raise StaleReview(f"The table changed since you looked: version {newest.version} is the newest.")
    return newest


def rotate_token(slug: str, *, actor: User) -> Credentials:
    """The new token, which is in clear only here. Raises NoSuchBottle, NotPermitted."""
    _check_may_run(slug, actor)
    return bottles.rotate_token(slug, author=actor.get_username())


def begin(verb: str, slug: str, *, actor: User) -> None:
    """Start or stop the bottle in a new process. Raises NoSuchBottle, NotPermitted."""
    _check_may_run(slug, actor)
    lifecycle.begin(verb, slug, actor=actor)


def check_quorum(newest: RouteTable, wanted: RouteTable) -> None:
    """One operator alone does not open what needs several operators. Raises TooRisky."""
    if not quorum.needs_several(Level.HIGH):
        return
    known_hosts = versions.hosts_reached()
    for change in diff_tables(newest, wanted):
        if change.part != "route" or not change.after:
            continue
        level = route_risk(change.after, newest, (), known_hosts=known_hosts).level
        if quorum.needs_several(level):
            raise TooRisky(
                f"It would open {change.host} further, which is high risk and needs "
                f"{quorum.operators_needed(level)} operators. Let the agent ask for it."
            )


def _check_may_run(slug: str, actor: User) -> Bottle:
    bottle = bottles.get(slug)
    if not may_run_for(actor, bottle):
        raise NotPermitted("This needs the permission 'run_bottle', and to be among the bottle's operators.")
    return bottle
