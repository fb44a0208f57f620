"""Fills a database with decided proposals, in bulk: rows as filing and deciding would have left them.

Import it where Django is set up. The audit chain goes on from what is there and is valid; every approval has
its route table.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from django.core.management.color import no_style
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db.models import Max, Model
from django.utils import timezone

from botbottle.models import Bottle
from egress.models import Publication, RouteTableVersion
from egress.policy.asks import parse_egress_ask, parse_gate_ask
from egress.policy.routes import Route
from egress.tables import versions
from supervise import audit
from supervise.digests import digest
from supervise.models import AuditEvent, AuditHead, Decision, Proposal

BATCH = 2000
HOSTS = 400
ROUTES = 6  # of a table
AGE = timedelta(days=360)
STEP = timedelta(seconds=30)  # from one proposal to the next
Status, Applied = Proposal.Status, Decision.Applied
TOOLS = {"egress-block": 88, "pipelock-block": 10, "capability-block": 2}
STATUSES = {
    Status.APPROVED: 55, Status.MODIFIED: 10, Status.REJECTED: 25, Status.WITHDRAWN: 5, Status.EXPIRED: 5
}  # fmt: skip
GRANTS = (Status.APPROVED, Status.MODIFIED)
WHY = "The build of the release needs it; without it the tests of the parser cannot be run. Number {}."
DOCKERFILE = "FROM debian:12\nRUN apt-get update && apt-get install -y tool-{}\nUSER agent\n"


class History:
    """Of bottles that exist. `grow_to` may be called again, with more.

    Rows are made without models, which would take most of the time. What is hashed goes through the product's
    own functions.
    """

    def __init__(self, bottles: Sequence[Bottle], *, seed: int = 7) -> None:
        self._bottles = bottles
        self._connection = connections[DEFAULT_DB_ALIAS]
        self._count = Decision.objects.count()
        self._random = random.Random(seed + self._count)  # no id is given twice
        first = Decision.objects.order_by("created_at").values_list("created_at", flat=True).first()
        self._start: datetime = first or timezone.now() - AGE
        self._asks = {
            tool: [_Ask(tool, payload_of(number)) for number in range(HOSTS)]
            for tool, payload_of in PAYLOADS.items()
        }
        self._routes = [Route(_host(n), ("/v1",), ("GET",)).as_dict() for n in range(HOSTS)]
        self._tools = self._random.choices(list(TOOLS), list(TOOLS.values()), k=1009)
        self._statuses = self._random.choices(list(STATUSES), list(STATUSES.values()), k=997)
        self._opened: list[deque[int]] = [deque(maxlen=ROUTES) for _ in bottles]
        self._tables: list[_Table] = []

    def grow_to(self, count: int) -> None:
        connection = self._connection
        if connection.vendor == "sqlite" and not connection.in_atomic_block:
            with connection.cursor() as cursor:
                cursor.execute("PRAGMA synchronous=OFF")
                cursor.execute("PRAGMA cache_size=-1000000")
        newest = [versions.current(bottle) for bottle in self._bottles]
        self._tables = [_Table(version.pk, version.version) for version in newest]
        for first in range(self._count, count, BATCH):
            with transaction.atomic():
                self._write(range(first, min(count, first + BATCH)))
        self._count = max(self._count, count)
        for bottle, table in zip(self._bottles, self._tables, strict=True):
            live = {"version": table.version, "live_version": table.version, "live_at": timezone.now()}
            Publication.objects.filter(bottle=bottle).update(**live)

    def _write(self, numbers: range) -> None:
        head, _ = AuditHead.objects.get_or_create(pk=1)
        next_key = (RouteTableVersion.objects.aggregate(newest=Max("pk"))["newest"] or 0) + 1
        rows = _Rows(self._connection, self._bottles[0])
        for number in numbers:
            next_key += self._decide(number, rows, head, next_key)
        rows.insert()
        AuditHead.objects.filter(pk=1).update(seq=head.seq, hash=head.hash)

    def _decide(self, number: int, rows: _Rows, head: AuditHead, next_key: int) -> int:
        """One proposal from filing to being live. Returns how many table versions it made."""
        place = number % len(self._bottles)
        bottle, table = self._bottles[place], self._tables[place]
        tool, status = self._tools[number % 1009], self._statuses[number % 997]
        host = self._random.randrange(HOSTS)
        ask, at = self._asks[tool][host], self._start + STEP * number
        decided_at = at + STEP / 2
        proposal = SimpleNamespace(pk=UUID(int=self._random.getrandbits(128), version=4))
        why = WHY.format(number)
        proposal.digest = digest([str(proposal.pk), bottle.slug, tool, ask.payload, why, table.version])
        rows.proposals.add(
            proposal.pk, bottle.pk, tool, ask.text, why, ask.digest, proposal.digest, table.version,
            status, at, at,
        )  # fmt: skip
        is_granted = status in GRANTS
        makes_table = is_granted and tool != "capability-block"
        author = f"operator-{number % 5}"
        if makes_table:
            content = self._content(place, host)
            rows.versions.add(
                next_key, bottle.pk, table.version + 1, table.key, content, author,
                f"proposal {proposal.pk}", decided_at,
            )  # fmt: skip
            table.key, table.version = next_key, table.version + 1
        decision = SimpleNamespace(
            proposal=proposal, proposal_id=proposal.pk, bottle=bottle, tool=tool, status=status,
            actor_name=author, notes="Only what the build reads." if number % 3 else "",
            seen_digest=ask.digest, final_payload=ask.payload if is_granted else None,
            granted=ask.payload if is_granted else None, not_granted=None,
            table_version=table if makes_table else None, created_at=decided_at,
        )  # fmt: skip
        applied = Applied.LIVE if makes_table else Applied.RECORDED if is_granted else Applied.NOTHING
        payload = ask.text if is_granted else None
        live = table.version if makes_table else None
        rows.decisions.add(
            proposal.pk, bottle.pk, tool, status, author, decision.notes, ask.digest, payload, payload,
            table.key if makes_table else None, live, applied, decided_at,
        )  # fmt: skip
        chain = _Chain(head, rows.events, bottle.slug, proposal.pk)
        chain.add("filed", f"bottle {bottle.slug}", at, {"tool": tool, "digest": proposal.digest})
        chain.add(status, author, decided_at, audit.details_of(decision))
        if makes_table:
            chain.add("live", "bot-bottle", decided_at, {"live_version": live, "problem": ""})
        return int(makes_table)

    def _content(self, place: int, host: int) -> str:
        """A table with the routes of the bottle's last few asks."""
        opened = self._opened[place]
        if host not in opened:
            opened.append(host)
        routes = [self._routes[each] for each in sorted(opened)]
        return json.dumps({"routes": routes, "gate_hosts": [route["host"] for route in routes]})


def _host(number: int) -> str:
    return f"h{number}.example.com"


PAYLOADS: dict[str, Callable[[int], dict[str, Any]]] = {
    "egress-block": lambda n: parse_egress_ask(
        {"host": _host(n), "path_allowlist": ["/v1"], "methods": ["GET"]}
    ),
    "pipelock-block": lambda n: parse_gate_ask({"failed_url": f"https://{_host(n)}/v1"}),
    "capability-block": lambda n: {"dockerfile": DOCKERFILE.format(n)},
}


class _Ask:
    def __init__(self, tool: str, payload: dict[str, Any]) -> None:
        self.payload, self.text, self.digest = payload, json.dumps(payload), digest([tool, payload])


@dataclass
class _Table:
    """A bottle's newest version."""

    key: int
    version: int


class _Chain:
    """Appends to the audit record what happened to one proposal."""

    def __init__(self, head: AuditHead, rows: _TableRows, slug: str, proposal_id: UUID) -> None:
        self._head, self._rows, self._slug, self._proposal_id = head, rows, slug, proposal_id

    def add(self, action: str, who: str, at: datetime, details: dict[str, Any]) -> None:
        head = self._head
        event: Any = SimpleNamespace(
            seq=head.seq + 1, at=at, actor_name=who, action=action, bottle_slug=self._slug,
            proposal_id=self._proposal_id, details=details, previous_hash=head.hash,
        )  # fmt: skip
        made = audit.link_hash(event)
        self._rows.add(
            event.seq, at, who, action, self._slug, self._proposal_id, json.dumps(details), head.hash, made
        )
        head.seq, head.hash = event.seq, made


class _TableRows:
    """Rows of one table: as the example, but for the columns that vary."""

    def __init__(self, connection: Any, example: Model, *varying: str) -> None:
        fields = [
            field for field in example._meta.concrete_fields
            if not (field.primary_key and getattr(example, field.attname) is None)
        ]  # fmt: skip
        self._connection, self._model = connection, type(example)
        self._rest = [field.get_db_prep_save(getattr(example, field.attname), connection) for field in fields]
        names = [field.attname for field in fields]
        self._places = [names.index(name) for name in varying]
        columns = ", ".join(f'"{field.column}"' for field in fields)
        self._sql = (
            f'INSERT INTO "{example._meta.db_table}" ({columns}) VALUES ({", ".join(["%s"] * len(fields))})'
        )
        self._rows: list[list[Any]] = []

    def add(self, *values: Any) -> None:
        row = self._rest.copy()
        for place, value in zip(self._places, values, strict=True):
            row[place] = value
        self._rows.append(row)

    def insert(self) -> None:
        if not self._rows:
            return
        ops = self._connection.ops
        prepare = {
            datetime: ops.adapt_datetimefield_value,
            UUID: _hex if ops.connection.vendor == "sqlite" else str,
        }
        rows = [
            [prepare[type(value)](value) if type(value) in prepare else value for value in row]
            for row in self._rows
        ]
        with self._connection.cursor() as cursor:
            cursor.executemany(self._sql, rows)
            for statement in ops.sequence_reset_sql(no_style(), [self._model]):
                cursor.execute(statement)


class _Rows:
    """Of all tables that a decision writes to."""

    def __init__(self, connection: Any, bottle: Bottle) -> None:
        self.versions = _TableRows(
            connection, RouteTableVersion(id=0, bottle=bottle, content={}),
            "id", "bottle_id", "version", "parent_id", "content", "author", "cause", "created_at",
        )  # fmt: skip
        self.proposals = _TableRows(
            connection, Proposal(bottle=bottle, payload={}),
            "id", "bottle_id", "tool", "payload", "justification", "ask_digest", "digest", "base_version",
            "status", "created_at", "asked_at",
        )  # fmt: skip
        self.decisions = _TableRows(
            connection, Decision(bottle=bottle),
            "proposal_id", "bottle_id", "tool", "status", "actor_name", "notes", "seen_digest",
            "final_payload", "granted", "table_version_id", "live_version", "applied", "created_at",
        )  # fmt: skip
        self.events = _TableRows(
            connection, AuditEvent(),
            "seq", "at", "actor_name", "action", "bottle_slug", "proposal_id", "details", "previous_hash",
            "hash",
        )  # fmt: skip

    def insert(self) -> None:
        for rows in (self.versions, self.proposals, self.decisions, self.events):
            rows.insert()


def _hex(key: UUID) -> str:
    return key.hex
