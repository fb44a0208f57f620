"""What operators do to one route of a bottle: change it, withdraw it, and preview both.

Each action first checks the right to decide for the bottle, and changes only a table that was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from botbottle.core.sanitize import without_nul_json
from egress.models import RouteTableVersion
from egress.policy import merge
from egress.policy.describe import table_text
from egress.policy.errors import PolicyError
from egress.policy.merge import Revision
from egress.policy.table import RouteTable
from egress.tables import versions
from supervise import audit, events
from supervise.bottles import records as bottles
from supervise.bottles.actions import check_quorum, lock_as_seen
from supervise.errors import BadAsk, TooRisky
from supervise.proposals import apply, quorum
from supervise.proposals.kind import Preview
from supervise.proposals.risk import Level, Risk, route_risk

CAUSE = 200  # the most characters of a version's cause


def withdraw_route(slug: str, host: str, *, actor: User, seen_version: int) -> RouteTableVersion:
    """Append a version without the host's route, made live after the commit: its open connections are cut.

    Raises NoSuchBottle, NotPermitted, StaleReview if another version than `seen_version` is the newest,
    BadAsk if there is no such route, and TooRisky if a wider one would take its place.
    """

    def withdrawn(table: RouteTable, now: datetime) -> Revision:
        return merge.withdraw_route(table, host, now=now)

    return _revise(slug, host, withdrawn, "route withdrawn", actor=actor, seen_version=seen_version)


def change_route(
    slug: str, host: str, fields: Mapping[str, Any], *, actor: User, seen_version: int
) -> RouteTableVersion:
    """Append a version with the given fields of the host's route changed; null removes one.

    Raises what `withdraw_route` raises; BadAsk also for fields that are wrong or change nothing.
    """

    def changed(table: RouteTable, now: datetime) -> Revision:
        return merge.change_route(table, host, _without_nul(fields), now=now)

    return _revise(slug, host, changed, "route changed", actor=actor, seen_version=seen_version)


def preview(version: RouteTableVersion, host: str, fields: Mapping[str, Any] | None = None) -> Preview:
    """What the change would do or, without fields, the withdrawal. Changes nothing. Raises BadAsk."""
    now, table = timezone.now(), version.table
    try:
        if fields is None:
            made = merge.withdraw_route(table, host, now=now)
        else:
            made = merge.change_route(table, host, _without_nul(fields), now=now)
    except PolicyError as error:
        raise BadAsk(str(error)) from error
    return Preview(
        before=table_text(table),
        after=table_text(made.table),
        effects=made.effects,
        warnings=made.warnings,
        risk=_risk(made, table),
        table_after=made.table,
    )


def _revise(
    slug: str,
    host: str,
    revise: Callable[[RouteTable, datetime], Revision],
    action: str,
    *,
    actor: User,
    seen_version: int,
) -> RouteTableVersion:
    bottle = bottles.get(slug)
    with transaction.atomic():
        newest = lock_as_seen(bottle, actor, seen_version)
        try:
            made = revise(newest.table, timezone.now())
        except PolicyError as error:
            raise BadAsk(str(error)) from error
        _check_quorum(newest.table, made)
        author = actor.get_username()
        cause = f"{action}: {host}"[:CAUSE]
        version = versions.append(newest, made.table, author=author, cause=cause)
        transaction.on_commit(lambda: apply.publish_table(bottle), robust=True)
        audit.append(
            action,
            actor_name=author,
            bottle_slug=slug,
            details={
                "host": host,
                "before": made.before.as_dict(),
                "after": made.after.as_dict() if made.after else None,
                "table_version": version.version,
            },
        )
        events.announce_bottle(bottle, bottle.state)
    return version


def _check_quorum(table: RouteTable, made: Revision) -> None:
    """Reach that shrinks needs no second approval."""
    if not made.widens:
        return
    if made.after is None and quorum.needs_several(Level.HIGH):
        raise TooRisky(
            f"Without a route of its own, {made.before.host} would be left to a wider one above it, which "
            f"needs {quorum.operators_needed(Level.HIGH)} operators. Withdraw or narrow that one first."
        )
    check_quorum(table, made.table)


def _risk(made: Revision, table: RouteTable) -> Risk:
    """The risk of what is new: what only shrinks has none, except for what could be overlooked."""
    if made.widens and made.after:
        known_hosts = versions.hosts_reached()
        return route_risk(made.after.as_dict(), table, made.warnings, known_hosts=known_hosts)
    level = Level.MEDIUM if made.warnings else Level.LOW
    return Risk(level, tuple((level, warning) for warning in made.warnings))


def _without_nul(fields: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(fields, Mapping):
        raise BadAsk("What to change must be a JSON object with the keys of a route.")
    return dict(without_nul_json(dict(fields)))
