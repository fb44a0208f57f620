"""manage.py routes list|change|withdraw"""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from botbottle.core.sanitize import make_visible
from egress.models import Publication, RouteTableVersion
from egress.policy.describe import table_text
from egress.tables import versions
from supervise.bottles import records as bottles
from supervise.bottles import route_actions
from supervise.cli.base import OperatorCommand, Verbs, acting_operator, read_payload, review_lines

VERBS = {
    "list": "the routes of the newest table",
    "change": "set some fields of one route; null removes one",
    "withdraw": "withdraw one route; open connections that use it are cut at once",
}


class Command(OperatorCommand):
    help = "Show a bottle's routes; change or withdraw one."

    def add_own_arguments(self, parser: CommandParser) -> None:
        verbs = Verbs(parser, *VERBS)
        own = {name: verbs.add(name, text) for name, text in VERBS.items()}
        for verb in own.values():
            verb.add_argument("slug")
        for name in ("change", "withdraw"):
            own[name].add_argument("host", help="as 'list' prints it")
            own[name].add_argument(
                "--as", metavar="USER", help="who decides; needed when there are several superusers"
            )
            own[name].add_argument(
                "--seen", type=int, metavar="VERSION", help="the table that you saw; without it, the newest"
            )
        own["change"].add_argument(
            "--payload", required=True, metavar="FILE", help="JSON; '-' reads standard input"
        )

    def run(self, options: dict[str, Any]) -> Any:
        bottle = bottles.get(options["slug"])
        newest = versions.current(bottle)
        if options["verb"] == "list":
            return _table(newest)
        actor, host = acting_operator(options["as"]), options["host"]
        fields = read_payload(options["payload"], "a route") if options["verb"] == "change" else None
        seen = newest.version if options["seen"] is None else options["seen"]
        review = route_actions.preview(newest, host, fields)
        if not options["json"]:
            self.stdout.write("\n".join(review_lines(review)))
        if fields is None:
            made = route_actions.withdraw_route(bottle.slug, host, actor=actor, seen_version=seen)
        else:
            made = route_actions.change_route(bottle.slug, host, fields, actor=actor, seen_version=seen)
        return {**_table(made), "effects": review.effects, "warnings": review.warnings}

    def show(self, options: dict[str, Any], result: Any) -> None:
        live = f"version {result['version']}, {_live(result)}"
        if options["verb"] != "list":
            done = "withdrawn" if options["verb"] == "withdraw" else "changed"
            self.stdout.write(f"{done}: {make_visible(options['host'])}, {live}")
            return
        self.stdout.write(f"{result['slug']}, {live}")
        self.stdout.write(make_visible(result["text"]) or "No routes: this bottle reaches nothing.")


def _table(version: RouteTableVersion) -> dict[str, Any]:
    publication = Publication.objects.get(bottle=version.bottle_id)
    return {
        "slug": version.bottle.slug,
        "version": version.version,
        "live_version": publication.live_version,
        "problem": publication.problem,
        **version.table.as_dict(),
        "text": table_text(version.table),
    }


def _live(result: dict[str, Any]) -> str:
    if result["live_version"] >= result["version"]:
        return "live"
    why = result["problem"] or "the proxy has not answered yet"
    return f"not live yet, and retried: {make_visible(why)}"
