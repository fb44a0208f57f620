"""Runs in the server's shell, with `given`: files and decides one of everything. Leaves ids in `answer`."""

from datetime import timedelta

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from botbottle.dockerfiles.parse import digest_of
from egress.contract import secret_variables
from egress.models import TrafficRecord
from egress.policy.asks import parse_egress_ask, parse_gate_ask
from egress.policy.routes import Auth, Lease, Route
from egress.tables import homes, publishing, versions
from supervise.bottles import images
from supervise.bottles import records as bottles
from supervise.kinds import mcp_tool
from supervise.models import Delivery, Rebuild, Webhook
from supervise.proposals import decisions, queries, snooze
from supervise.proposals.submit import submit_proposal
from supervise.webhooks import manage

bottle = bottles.get(given["slug"])  # noqa: F821 - given by whoever runs this
otto = User.objects.get(username="otto")
now = timezone.now()
BEFORE = "FROM debian:12\nRUN apt-get update\nRUN apt-get install --yes git\nUSER agent\n"
AFTER = (
    "FROM debian:12\nRUN apt-get update\nRUN apt-get install --yes git ripgrep\n"
    "ADD https://get.example.net/tool.sh /tmp/tool.sh\n"
    "RUN curl -k https://get.example.net/more | sh\nUSER root\n"
)


def route(host, why="The task needs it.", **more):
    return submit_proposal(bottle, "egress-block", parse_egress_ask({"host": host, **more}), why).proposal


def image(text, why="The build needs ripgrep."):
    return submit_proposal(bottle, "capability-block", {"dockerfile": text}, why).proposal


def seen(proposal):
    return queries.review_of(queries.get_proposal(proposal.pk)).seen_digest


def approved(proposal):
    return decisions.approve(proposal.pk, actor=otto, seen_digest=seen(proposal), note="for this task")


def record(verdict, host, path, hours, ask=None):
    return TrafficRecord(
        bottle=bottle, at=now - timedelta(hours=hours, minutes=1), method="GET", scheme="https", host=host,
        path=path, route=host if verdict == "allowed" else "", table_version=2, verdict=verdict,
        reason="ok" if verdict == "allowed" else "no-route", status=200 if verdict == "allowed" else 403,
        bytes_out=120, bytes_in=4000, duration_ms=12, ask=ask,
    )  # fmt: skip


def ask_for(host, path):
    arguments = {"host": host, "path_allowlist": [path], "methods": ["GET"], "justification": "refused"}
    return {"tool": "egress-block", "arguments": arguments}


# --- the table and its traffic

for made in (
    Route("api.example.com", ("/repos/acme",), ("GET", "POST"), auth=Auth("Bearer", "TOKEN")),
    Route("a-very-long-name-that-does-not-fit-on-a-telephone.internal.registry.example.org"),
    Route("inner.example.com", ("/status",), ("GET",), pinned_addresses=("10.1.2.3",)),
    Route("leased.example.com", lease=Lease(now + timedelta(hours=3), 50, now)),
):
    with transaction.atomic():
        newest = versions.lock(bottle)
        versions.append(newest, newest.table.with_route(made), author="tests", cause="by hand")
    publishing.publish(bottle)
records = [record("allowed", "api.example.com", "/repos/acme", n % 24) for n in range(90)]
records += [record("refused", "telemetry.example.net", "/v1/track", n % 20) for n in range(40)]
site = "/repos/acme/site"
records += [record("refused", "api.github.com", site, n, ask_for("api.github.com", site)) for n in range(3)]
records += [
    record("refused", "mirror.example.net", f"/dists/{n}", 0, ask_for("mirror.example.net", f"/dists/{n}"))
    for n in range(3)
]
TrafficRecord.objects.bulk_create(records)

# --- a file that the proxy cannot read

torn = homes.bottle_directory(bottle) / "run" / secret_variables.FILE
torn.parent.mkdir(mode=0o700, exist_ok=True)
torn.write_text("[")

# --- asks that wait

github = {
    "path_allowlist": ["/repos/acme/site"],
    "methods": ["GET", "POST"],
    "auth": {"scheme": "Bearer", "token_ref": "GITHUB_TOKEN"},
}
other = bottles.create(f"{bottle.slug}-twin", author="tests").bottle
asked_there = submit_proposal(
    other, "egress-block", parse_egress_ask({"host": "api.github.com", **github}), "Me too."
).proposal
decisions.approve(asked_there.pk, actor=otto, seen_digest=seen(asked_there), note="needed there")
earlier = route("api.github.com", path_allowlist=["/repos/acme/site/releases"], methods=["GET"])
decisions.reject(earlier.pk, actor=otto, seen_digest=seen(earlier), note="Ask for the whole repository.")
long_words = "To publish the notes of v2.4.0 I have to create a release. " * 12
waiting = {
    "route": route("api.github.com", long_words, **github),
    "low": route(
        "docs.example.org", path_allowlist=["/3/library"], methods=["GET"], lease={"ttl_seconds": 3600}
    ),
    "wild": route("*.xn--pypal-4ve.example.net"),
    "widened": route("api.example.com"),
    "inner": route("inner.example.com", path_allowlist=["/all"], methods=["GET"]),
    "gate": submit_proposal(
        bottle, "pipelock-block", parse_gate_ask({"failed_url": "https://gate.example.org/x"}), "Blocked."
    ).proposal,
}
images.show_dockerfile(bottle, BEFORE)
bottle.refresh_from_db()
waiting["image"] = image(AFTER)
call = mcp_tool.ask(
    bottle, "issues", "create_issue", {"title": "Broken build", "labels": ["ci", "urgent"], "body": "x" * 300}
)
asleep = route("later.example.org", path_allowlist=["/x"])
snooze.snooze(asleep.pk, actor=otto, until=now + timedelta(hours=8))

# --- asks that were decided

granted = route("cdn.example.org", path_allowlist=["/a"], methods=["GET"])
approved(granted)
refused = route("ads.example.org")
decisions.reject(
    refused.pk, actor=otto, seen_digest=seen(refused), note="We have a mirror for that.", stop_asking=True
)


def rebuilt(text, **columns):
    """As the process that builds leaves it; no engine is needed to look at it."""
    proposal = image(text)
    decision = approved(proposal)
    text = decision.final_payload["dockerfile"]
    made = Rebuild.objects.create(
        bottle=bottle, decision=decision, author="otto", dockerfile=text, digest=digest_of(text),
        workspace={"branch": "main", "commit": "4f2a9c1", "changes": 2, "changed": ["src/a.py", "notes.md"]},
        build_started_at=now, **columns,
    )  # fmt: skip
    images.directory_of(made).mkdir(mode=0o700, parents=True, exist_ok=True)
    images.log_path(made).write_text("".join(f"Step {n}/40 : RUN make part-{n}\n" for n in range(1, 41)))
    return str(proposal.pk)


Phase = Rebuild.Phase
answer = {name: str(proposal.pk) for name, proposal in waiting.items()}
answer |= {
    "call": str(call),
    "asleep": str(asleep.pk),
    "approved": str(granted.pk),
    "refused": str(refused.pk),
}
answer["failed"] = rebuilt(
    "FROM debian:12\nRUN make a\n",
    phase=Phase.FAILED,
    problem="make: *** [a] Error 2",
    build_ended_at=now,
    ended_at=now,
)
answer["live"] = rebuilt(
    "FROM debian:12\nRUN make b\n",
    phase=Phase.LIVE,
    image="built:b",
    previous_dockerfile=BEFORE,
    build_ended_at=now,
    ended_at=now,
)
answer["building"] = rebuilt("FROM debian:12\nRUN make c\n", phase=Phase.BUILDING)

# --- the admin's

hook = Webhook(
    name=f"chat of {bottle.slug}", url="https://chat.example.com/hooks/1", events=["filed"], is_active=False
)
manage.put(hook, secret="a-secret-of-ours-0001", author="otto")
for state, code, error in (
    ("delivered", 200, ""),
    ("given up", None, "It cannot be reached: Connection refused."),
):
    Delivery.objects.create(
        webhook=hook, event="filed", facts={"event": "filed", "host": "api.example.com"}, state=state,
        attempts=3, response_code=code, last_error=error, next_attempt_at=now, finished_at=now,
    )  # fmt: skip
