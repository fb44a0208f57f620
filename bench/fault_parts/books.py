"""Compare what the outside world saw with the database.

A program: it reads evidence from stdin and writes contradictions to stdout, in the environment of the
installation, after everything has come to rest.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

REST_SECONDS = 60.0
BECOMES = {"approve": "approved", "modify": "modified", "reject": "rejected"}


def contradictions(evidence: dict[str, Any]) -> Iterator[str]:
    from supervise.models import Decision, Proposal  # noqa: PLC0415 - Django must be set up first

    statuses = {str(pk): status for pk, status in Proposal.objects.values_list("pk", "status")}
    decided = set(map(str, Decision.objects.values_list("proposal_id", flat=True)))
    for proposal, status in statuses.items():
        if (status == "pending") == (proposal in decided):
            yield f"{proposal} is {status}, and has {'a' if proposal in decided else 'no'} decision"
    yield from _operators(evidence["decided"], statuses)
    yield from _agents(evidence["told"], statuses)
    yield from _live(evidence["live"])
    yield from _allowed(evidence["origin"])


def _operators(answers: list[tuple[str, str, int]], statuses: dict[str, str]) -> Iterator[str]:
    won = Counter(proposal for proposal, _, code in answers if code == 200)
    yield from (f"{proposal} was decided {times} times" for proposal, times in won.items() if times > 1)
    for proposal, verb, code in answers:
        if code == 200 and statuses.get(proposal) != BECOMES[verb]:
            yield f"an operator was told that {verb} of {proposal} succeeded; it is {statuses.get(proposal)}"


def _agents(answers: list[tuple[str, str, int | None]], statuses: dict[str, str]) -> Iterator[str]:
    for proposal, status, _ in answers:
        if proposal not in statuses:
            yield f"an agent was told of the proposal {proposal}, which does not exist"
        elif status != "pending" and statuses[proposal] != status:
            yield f"an agent was told that {proposal} is {status}; it is {statuses[proposal]}"


def _live(live: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Every approval is in what the proxy serves."""
    from egress.policy.paths import prefix_allows  # noqa: PLC0415
    from supervise.models import Decision  # noqa: PLC0415

    served = {(slug, route["host"]): route for slug, table in live.items() for route in table["routes"]}
    granted = Decision.objects.filter(status__in=["approved", "modified"]).select_related("proposal__bottle")
    for decision in granted:
        ask = decision.final_payload
        route = served.get((decision.proposal.bottle.slug, ask["host"]), {"path_allowlist": ["/nothing"]})
        prefixes = route["path_allowlist"] or ["/"]
        if decision.applied != Decision.Applied.LIVE:
            yield f"{decision.proposal_id} is {decision.status} and not live: {decision.apply_error}"
        elif not all(any(prefix_allows(one, path) for one in prefixes) for path in ask["path_allowlist"]):
            yield f"{decision.proposal_id} is called live, but the proxy does not serve it"


def _allowed(seen: list[tuple[str, str]]) -> Iterator[str]:
    """What reached an origin was allowed by some version of its bottle's table."""
    from egress.models import RouteTableVersion  # noqa: PLC0415

    routes: dict[tuple[str, str], list[Any]] = {}
    for version in RouteTableVersion.objects.select_related("bottle"):
        for route in version.table.routes:
            routes.setdefault((version.bottle.slug, route.host), []).append(route)
    for host, path in seen:
        slug = path.split("/")[1]
        if not any(route.admits_path(path) for route in routes.get((slug, host), ())):
            yield f"{path} reached {host}, and no table of {slug} ever allowed it"


def _rest() -> None:
    """Wait until nothing is still to be applied."""
    from supervise.models import Decision  # noqa: PLC0415

    unfinished = Decision.objects.filter(applied__in=[Decision.Applied.WAITING, Decision.Applied.FAILED])
    deadline = time.monotonic() + REST_SECONDS
    while unfinished.exists() and time.monotonic() < deadline:
        time.sleep(0.2)


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "botbottle.settings")
    import django  # noqa: PLC0415

    django.setup()
    from django.conf import settings  # noqa: PLC0415

    from egress.tables.proxy_client import ProxyClient  # noqa: PLC0415

    evidence = json.load(sys.stdin)
    _rest()
    plane = ProxyClient(settings.BOTTLE_HOME / "run", 1)
    evidence["live"] = {slug: plane.routes(slug) for slug in evidence["bottles"]}
    json.dump(list(contradictions(evidence)), sys.stdout)


if __name__ == "__main__":
    main()
