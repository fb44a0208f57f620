"""`pipelock-block`: an agent asks that the gate lets a host through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from datetime import datetime
from typing import Any

from botbottle.models import Bottle
from egress.policy.asks import parse_gate_ask
from egress.policy.merge import Merge, merge_gate_host
from egress.policy.table import RouteTable
from supervise.errors import BadAsk
from supervise.kinds.route_table import TableKind
from supervise.models import Decision
from supervise.proposals.kind import WAITS, Json
from supervise.proposals.risk import Level, Risk, host_findings


class PipelockBlock(TableKind):
    name = "pipelock-block"
    shown_keys = ("host",)
    why_not_editable = (
        "There is nothing to modify: one host passes the gate, or it does not. Approve or reject."
    )
    title = "Ask the gate to allow a host"
    description = (
        "Ask to add a hostname to the gate's allowlist. Use it only when a request has a route (see "
        "list-egress-routes) and was refused by the gate (pipelock) because of its hostname; for a host with "
        f"no route use egress-block, which opens the gate as well. {WAITS}"
    )
    required = ("failed_url",)
    properties = {
        "failed_url": {
            "type": "string",
            "minLength": 1,
            "description": "The http or https URL that was refused. Its hostname is what you ask for; the "
            "rest helps the operator to understand.",
        },
    }

    def parse(self, bottle: Bottle, arguments: Mapping[str, Any]) -> Json:
        return dict(parse_gate_ask(arguments))

    def arguments_of(self, payload: Json) -> Json:
        return {key: value for key, value in payload.items() if key != "host"}

    def check(self, payload: Json) -> Json:
        checked = parse_gate_ask(self.arguments_of(payload))
        if payload.get("host", checked["host"]) != checked["host"]:
            raise BadAsk("The payload's host is taken from its failed_url: change that one, or leave both.")
        return dict(checked)

    def summary(self, payload: Json) -> str:
        return f"let {payload['host']} through the gate, for {payload['failed_url']}"

    def merge(self, table: RouteTable, payload: Json, *, now: datetime, by_operator: bool) -> Merge:
        return merge_gate_host(table, payload["host"])

    def risk(self, payload: Json, table: RouteTable, warnings: Sequence[str], known_hosts: Set[str]) -> Risk:
        """A warning here means that the host stays unreachable, which is not a risk."""
        found = host_findings(payload["host"], table, known_hosts)
        return Risk.of([*found, *((Level.LOW, warning) for warning in warnings)])

    def explain_live(self, decision: Decision) -> str:
        host = (decision.granted or {}).get("host", "the host")
        return (
            f"{host} is on the gate's allowlist (version {decision.live_version}). The gate is the second "
            "check: see with list-egress-routes whether a route leads there; if none does, use egress-block."
        )
