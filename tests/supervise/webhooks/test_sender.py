"""Telling receivers: real HTTP servers that answer, fail, hang, redirect or are not there at all."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from botbottle.models import Bottle
from egress.tables import homes
from supervise import audit, audit_check
from supervise.bottles import records as bottles
from supervise.models import AuditEvent, Decision, Delivery, Proposal, Webhook
from supervise.proposals import apply, decisions
from supervise.webhooks import http as webhook_post
from supervise.webhooks import manage, outbox
from supervise.webhooks import sender as webhooks
from supervise.webhooks.sender import Sender
from tests.supervise.console.conftest import browser_of
from tests.support.proposals import ask, ask_image, seen
from tests.support.timeouts import wait_until
from tests.support.webhook_receiver import Receiver

pytestmark = pytest.mark.django_db(transaction=True)
ALL = [event for event in Webhook.Event.values if event != "test"]
SECRET = "a-secret-of-ours-0001"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver().running() as running:
        yield running


def hook(receiver: Receiver, *events: str, name: str = "chat", **more: Any) -> Webhook:
    webhook = Webhook(name=name, url=receiver.url, events=list(events) or ALL, **more)
    return manage.put(webhook, secret=SECRET, author="ada")


@pytest.fixture
def sender() -> Iterator[Sender]:
    sender = Sender()
    yield sender
    sender.wait(30)


def tell(sender: Sender) -> None:
    """One round, and all it begins."""
    sender.round()
    sender.wait(30)


def let_time_pass(**span: float) -> None:
    """For everything that still waits."""
    for delivery in Delivery.objects.filter(state="waiting"):
        delivery.next_attempt_at -= timedelta(**span)
        delivery.save()
        created = delivery.created_at - timedelta(**span)
        Delivery.objects.filter(pk=delivery.pk).update(created_at=created)


def states() -> list[tuple[str, int, int | None]]:
    rows = Delivery.objects.order_by("pk")
    return [(row.state, row.attempts, row.response_code) for row in rows]


# --- what is told


def test_a_filed_proposal_is_told_with_ids_and_the_host_only(
    receiver: Receiver, sender: Sender, agent_a: Bottle, settings: Any
) -> None:
    settings.CONSOLE_URL = "https://console.example.com"
    hook(receiver, "filed")
    proposal = ask(agent_a, path_allowlist=["/secret-path"], why="secret words")
    tell(sender)
    [(path, headers, body)] = receiver.got
    facts = json.loads(body)
    assert path == "/hook?room=1"
    assert facts == {
        "event": "filed",
        "seq": AuditEvent.objects.get(action="filed").seq,
        "at": AuditEvent.objects.get(action="filed").at.isoformat(),
        "bottle": "agent-a",
        "proposal": str(proposal.pk),
        "tool": "egress-block",
        "risk": "medium",
        "host": "api.example.com",
        "pending": 1,
        "url": f"https://console.example.com/proposals/{proposal.pk}/",
    }
    assert b"secret" not in body
    assert headers["X-Bot-Bottle-Event"] == "filed"
    assert headers["X-Bot-Bottle-Signature"].startswith("sha256=")
    assert states() == [("delivered", 1, 200)]


@contextmanager
def nothing_can_be_published(settings: Any, tmp_path: Any) -> Iterator[None]:
    (tmp_path / "home_id").write_text(homes.home_id())  # the same home, in trouble
    home, settings.BOTTLE_HOME = settings.BOTTLE_HOME, tmp_path
    (tmp_path / "bottles").write_text("in the way")
    yield
    settings.BOTTLE_HOME = home


@pytest.fixture
def happening(agent_a: Bottle, operator: User, settings: Any, tmp_path: Any) -> Callable[[], None]:
    """One of everything that can be told."""

    def happen() -> None:
        low = ask(agent_a, methods=["GET"], path_allowlist=["/a"])
        decisions.reject(low.pk, actor=operator, seen_digest=seen(low), note="no")
        high = ask(agent_a, "*.example.com")
        with nothing_can_be_published(settings, tmp_path):
            decisions.approve(high.pk, actor=operator, seen_digest=seen(high))
        with transaction.atomic():
            audit.append("bottle stopped", actor_name="x", bottle_slug="agent-a", details={"exit_code": 3})
            audit.append(
                "bottle not started", actor_name="x", bottle_slug="agent-a", details={"problem": "y"}
            )
            audit.append("bottle used", actor_name="x", bottle_slug="agent-a")

    return happen


@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        (["filed"], ["filed low", "filed high"]),
        (["high-risk"], ["filed high"]),
        (["filed", "high-risk"], ["filed low", "filed high"]),
        (["decided"], ["decided rejected", "decided approved"]),
        (["not-live"], ["not-live"]),
        (["stopped"], ["stopped 3", "did not start None"]),
        (
            ALL,
            [
                "filed low", "decided rejected", "filed high", "decided approved", "not-live", "stopped 3",
                "did not start None",
            ],
        ),
    ],
)  # fmt: skip
def test_each_receiver_hears_what_it_was_set_up_for(
    receiver: Receiver, sender: Sender, happening: Callable[[], None], chosen: list[str], told: list[str]
) -> None:
    hook(receiver, *chosen)
    happening()
    tell(sender)

    def in_short(facts: dict[str, Any]) -> str:
        match facts["event"]:
            case "filed":
                return f"filed {facts['risk']}"
            case "decided":
                return f"decided {facts['decision']}"
            case "stopped":
                return f"{facts['what']} {facts['exit_code']}"
        return str(facts["event"])

    assert [in_short(facts) for facts in receiver.facts] == told


def test_a_withdrawn_and_an_expired_one_are_decided_too(
    receiver: Receiver, sender: Sender, agent_a: Bottle
) -> None:
    hook(receiver, "decided")
    decisions.withdraw(ask(agent_a).pk, bottle=agent_a)
    ask_image(agent_a)
    bottles.delete("agent-a", author="root")
    tell(sender)
    assert [(facts["decision"], facts["by"]) for facts in receiver.facts] == [
        ("withdrawn", "bottle agent-a"),
        ("expired", "bot-bottle"),
    ]


def test_nothing_from_before_it_was_set_up_or_while_it_was_off(
    receiver: Receiver, sender: Sender, agent_a: Bottle
) -> None:
    ask(agent_a, "before.example.com")
    webhook = hook(receiver, "filed")
    ask(agent_a, "one.example.com")
    webhook.is_active = False
    manage.put(webhook, author="ada")
    tell(sender)
    ask(agent_a, "off.example.com")
    webhook.is_active = True
    manage.put(webhook, author="ada")
    ask(agent_a, "two.example.com")
    tell(sender)
    assert [facts["host"] for facts in receiver.facts] == ["two.example.com"]


def test_a_change_of_an_active_one_loses_nothing(receiver: Receiver, sender: Sender, agent_a: Bottle) -> None:
    webhook = hook(receiver, "filed")
    ask(agent_a)
    webhook.name = "renamed"
    manage.put(webhook, author="ada")
    tell(sender)
    assert len(receiver.got) == 1


def test_many_rows_are_looked_through_in_parts(
    receiver: Receiver, sender: Sender, agent_a: Bottle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "ROWS_AT_ONCE", 2)
    hook(receiver, "filed")
    hosts = [f"n{number}.example.com" for number in range(7)]
    for host in hosts:
        ask(agent_a, host)
    tell(sender)
    assert [facts["host"] for facts in receiver.facts] == hosts
    tell(sender)
    assert len(receiver.got) == 7, "and each of them once"


def test_looking_when_nothing_happened_costs_three_small_queries(
    receiver: Receiver, sender: Sender, agent_a: Bottle, django_assert_num_queries: Any
) -> None:
    hook(receiver, "filed")
    tell(sender)
    with django_assert_num_queries(3):
        sender.round()


# --- receivers in trouble


def test_one_that_is_down_is_told_everything_once_it_is_back(
    sender: Sender, agent_a: Bottle, operator: User
) -> None:
    with Receiver().running() as receiver:
        pass  # it has a port now, and nobody listens there
    hook(receiver)
    proposals = [ask(agent_a, f"n{number}.example.com") for number in range(5)]
    for proposal in proposals:
        decisions.approve(proposal.pk, actor=operator, seen_digest=seen(proposal))
    tell(sender)
    assert sum(attempts for _, attempts, _ in states()) == 1, "one failed try speaks for all"
    assert "cannot be reached" in Delivery.objects.get(attempts=1).last_error
    for _ in range(4):
        let_time_pass(hours=2)
        tell(sender)
    assert {state for state, _, _ in states()} == {"waiting"}
    with receiver.running():
        let_time_pass(hours=2)
        tell(sender)
    assert {state for state, _, _ in states()} == {"delivered"}
    told = sorted((facts["event"], facts["host"]) for facts in receiver.facts)
    hosts = [proposal.payload["host"] for proposal in proposals]
    assert told == sorted((event, host) for event in ("filed", "decided") for host in hosts)


@pytest.mark.parametrize("status", [500, 503, 429])
def test_one_that_fails_is_asked_again_later_and_later(
    receiver: Receiver, sender: Sender, agent_a: Bottle, status: int
) -> None:
    receiver.status = status
    hook(receiver, "filed")
    ask(agent_a)
    waits = []
    for _ in range(4):
        tell(sender)
        delivery = Delivery.objects.get()
        waits.append((delivery.next_attempt_at - timezone.now()).total_seconds())
        assert (delivery.state, delivery.response_code) == ("waiting", status)
        tell(sender)  # not due yet
        let_time_pass(seconds=waits[-1] + 1)
    assert len(receiver.got) == 4
    for wait, base in zip(waits, (5, 10, 20, 40), strict=True):
        assert 0.75 * base <= wait <= 1.2 * base
    receiver.status = 204
    tell(sender)
    assert states() == [("delivered", 5, 204)]
    assert Delivery.objects.get().last_error == ""


def test_when_it_answers_again_what_waited_goes_at_once(
    receiver: Receiver, sender: Sender, agent_a: Bottle
) -> None:
    hook(receiver, "filed")
    receiver.status = 503
    for number in range(6):  # after the sixth failure it would wait for minutes
        ask(agent_a, f"n{number}.example.com")
        tell(sender)
        let_time_pass(minutes=10)
    tell(sender)
    receiver.status, receiver.got = 200, []
    ask(agent_a, "new.example.com")
    tell(sender)
    assert len(receiver.got) == 7
    assert {state for state, _, _ in states()} == {"delivered"}


def test_a_message_it_refuses_holds_up_no_other(receiver: Receiver, sender: Sender, agent_a: Bottle) -> None:
    hook(receiver, "filed")

    def answer(handler: BaseHTTPRequestHandler) -> None:
        bad = b"bad.example.com" in receiver.got[-1][2]
        handler.send_response(400 if bad else 200)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    receiver.answering = answer
    for host in ("bad.example.com", "good.example.com", "fine.example.com"):
        ask(agent_a, host)
    tell(sender)
    assert states() == [("waiting", 1, 400), ("delivered", 1, 200), ("delivered", 1, 200)]


def test_it_gives_up_after_many_attempts_and_can_be_told_to_try_again(
    receiver: Receiver, sender: Sender, agent_a: Bottle, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(webhooks, "MOST_ATTEMPTS", 3)
    receiver.status = 404
    hook(receiver, "filed")
    ask(agent_a)
    for _ in range(5):
        tell(sender)
        let_time_pass(hours=1)
    assert states() == [("given up", 3, 404)]
    assert "given up" in caplog.text
    receiver.status = 200
    assert manage.send_again(Delivery.objects.get())
    tell(sender)
    assert states() == [("delivered", 1, 200)]
    assert not manage.send_again(Delivery.objects.get())


def test_it_gives_up_after_days(receiver: Receiver, sender: Sender, agent_a: Bottle) -> None:
    receiver.status = 500
    hook(receiver, "filed")
    ask(agent_a)
    tell(sender)
    let_time_pass(days=3.1)
    tell(sender)
    assert states() == [("given up", 2, 500)]


def test_the_log_is_forgotten_after_two_weeks(receiver: Receiver, sender: Sender, agent_a: Bottle) -> None:
    hook(receiver, "filed")
    ask(agent_a)
    tell(sender)
    webhooks.prune()
    assert Delivery.objects.count() == 1
    Delivery.objects.update(finished_at=timezone.now() - timedelta(days=15))
    webhooks.prune()
    assert not Delivery.objects.exists()


def test_a_redirect_is_not_followed(receiver: Receiver, sender: Sender, agent_a: Bottle) -> None:
    with Receiver().running() as elsewhere:
        receiver.status, receiver.headers = 307, {"Location": elsewhere.url}
        hook(receiver, "filed")
        ask(agent_a)
        tell(sender)
        assert elsewhere.got == []
    assert states() == [("waiting", 1, 307)]
    assert "not followed" in Delivery.objects.get().last_error


def drip(handler: BaseHTTPRequestHandler) -> None:
    """A byte now and then: no single read times out."""
    for byte in b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 1000:
        try:
            handler.wfile.write(bytes([byte]))
        except OSError:
            return
        time.sleep(0.02)


def pour(handler: BaseHTTPRequestHandler) -> None:
    """An answer without end."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
    try:
        while True:
            handler.wfile.write(b"x" * 65536)
    except OSError:
        return


def babble(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"\x00\xff" * 100 + b"\r\n\r\n")


def many_headers(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 100_000 + b"\r\n")


def hang_up(handler: BaseHTTPRequestHandler) -> None:
    handler.connection.close()


@pytest.mark.parametrize(
    ("answering", "taken", "problem"),
    [
        (drip, False, "did not answer in time"),
        (pour, True, ""),
        (babble, False, "did not answer as HTTP"),
        (many_headers, False, "did not answer as HTTP"),
        (hang_up, False, ""),
    ],
)
def test_an_answer_is_bounded_in_time_and_size(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, answering: Any, taken: bool, problem: str
) -> None:
    monkeypatch.setattr(webhook_post, "WHOLE_SECONDS", 0.5)
    receiver.answering = answering
    answer = webhook_post.post(receiver.url, b"{}", {})
    assert answer.is_success is taken
    assert problem in answer.problem


def test_what_the_answer_says_is_not_kept(receiver: Receiver, sender: Sender, agent_a: Bottle) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 500 internal-secret\r\nContent-Length: 15\r\n\r\ninternal-secret")

    receiver.answering = answer
    hook(receiver, "filed")
    ask(agent_a)
    tell(sender)
    assert "internal-secret" not in str(list(Delivery.objects.values()))


def test_a_slow_one_slows_neither_a_decision_nor_another_receiver(
    receiver: Receiver, sender: Sender, agent_a: Bottle, operator: User
) -> None:
    go_on = threading.Event()
    receiver.answering = lambda handler: (go_on.wait(30), handler.send_response(200), handler.end_headers())  # type: ignore[assignment,return-value]
    hook(receiver, name="slow")
    with Receiver().running() as quick:
        hook(quick, name="quick")
        ask(agent_a, "first.example.com")
        sender.round()
        wait_until(lambda: receiver.got, what="the slow one's request")
        proposal = ask(agent_a, "second.example.com")
        decisions.approve(proposal.pk, actor=operator, seen_digest=seen(proposal))
        assert Decision.objects.get().applied == "live", "while the slow one still has not answered"

        def is_told() -> bool:
            sender.round()
            return len(quick.got) == 3

        wait_until(is_told, what="the quick one being told all")
        assert len(receiver.got) == 1
        go_on.set()
        sender.wait(30)
        tell(sender)
    assert len(receiver.got) == 3
    assert {state for state, _, _ in states()} == {"delivered"}


def test_a_sender_that_died_in_the_middle_loses_nothing(
    receiver: Receiver, sender: Sender, agent_a: Bottle
) -> None:
    webhook = hook(receiver, "filed")
    ask(agent_a)
    outbox.spool()
    assert webhooks._claim(webhook.pk) is not None  # and there it ended
    tell(sender)
    assert receiver.got == []
    let_time_pass(minutes=3)
    tell(sender)
    assert len(receiver.got) == 1


def test_one_sender_per_home(settings: Any, tmp_path: Any) -> None:
    settings.BOTTLE_HOME = tmp_path
    first, second = Sender(), Sender()
    assert first.acquire() and first.acquire()
    assert not second.acquire()
    first.stop()
    first._run()  # ends, and lets go
    assert second.acquire()
    second.stop()
    second._run()


def test_as_a_thread_it_tells_by_itself(
    receiver: Receiver, agent_a: Bottle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sender, "pause_seconds", 0.01)
    sender = Sender()
    hook(receiver, "filed")
    sender.start()
    try:
        ask(agent_a)
        wait_until(lambda: states() == [("delivered", 1, 200)], what="the delivery")
    finally:
        sender.stop()
        wait_until(lambda: "webhooks" not in {t.name for t in threading.enumerate()}, what="its end")
        sender.wait(10)


def test_a_decision_makes_no_query_for_webhooks(receiver: Receiver, agent_a: Bottle, operator: User) -> None:
    hook(receiver)
    proposal = ask(agent_a)
    with CaptureQueriesContext(connection) as captured:
        decisions.approve(proposal.pk, actor=operator, seen_digest=seen(proposal))
    assert not [query for query in captured if "webhook" in query["sql"] or "delivery" in query["sql"]]


def test_an_unreadable_secret_sends_nothing_unsigned(
    receiver: Receiver, sender: Sender, agent_a: Bottle, settings: Any, tmp_path: Any
) -> None:
    hook(receiver, "filed")
    ask(agent_a)
    settings.BOTTLE_HOME = tmp_path  # another home, with another key
    tell(sender)
    assert receiver.got == []
    assert "Set it again" in Delivery.objects.get().last_error


def test_an_untrusted_certificate_is_refused(sender: Sender, agent_a: Bottle, tmp_path: Any) -> None:
    from tests.support.origins import TestAuthority

    context = TestAuthority(tmp_path).context(["localhost"])
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        url = f"https://localhost:{server.server_address[1]}/"
        manage.put(Webhook(name="tls", url=url, events=["filed"]), secret=SECRET, author="ada")
        ask(agent_a)
        tell(sender)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert "certificate is not valid" in Delivery.objects.get().last_error


def test_retrying_an_application_that_fails_the_same_way_is_told_once(
    receiver: Receiver, sender: Sender, happening: Callable[[], None], settings: Any, tmp_path: Any
) -> None:
    hook(receiver, "not-live")
    happening()
    Decision.objects.update(created_at=timezone.now() - timedelta(minutes=1))
    with nothing_can_be_published(settings, tmp_path):
        apply.retry_unfinished()
    tell(sender)
    assert [facts["event"] for facts in receiver.facts] == ["not-live"]


# --- in the admin


@pytest.fixture
def root(db: None) -> Client:
    return browser_of(User.objects.create_superuser("root", password="correct-horse-battery"))


def form(receiver: Receiver, **more: Any) -> dict[str, Any]:
    given = {
        "name": "chat", "url": receiver.url, "kind": "generic", "events": ["filed", "decided"],
        "secret": SECRET, "is_active": "on", **more,
    }  # fmt: skip
    return {key: value for key, value in given.items() if value is not None}


ADD = "/admin/supervise/webhook/add/"


def test_it_is_set_up_in_the_admin_and_its_secret_is_never_shown(root: Client, receiver: Receiver) -> None:
    assert root.post(ADD, form(receiver)).status_code == 302
    webhook = Webhook.objects.get()
    assert (webhook.events, webhook.updated_by) == (["filed", "decided"], "root")
    change = f"/admin/supervise/webhook/{webhook.pk}/change/"
    assert SECRET not in root.get(change).text + root.get("/admin/supervise/webhook/").text
    assert SECRET.encode() not in bytes(webhook.sealed)
    assert root.post(change, form(receiver, secret="", events=["stopped"])).status_code == 302
    kept = Webhook.objects.get()
    assert (bytes(kept.sealed), kept.events) == (bytes(webhook.sealed), ["stopped"])
    assert root.post(change, form(receiver, secret="another-secret-of-ours")).status_code == 302
    assert bytes(Webhook.objects.get().sealed) != bytes(webhook.sealed)
    root.post(f"/admin/supervise/webhook/{webhook.pk}/delete/", {"post": "yes"})
    told = AuditEvent.objects.filter(action__startswith="webhook").order_by("seq")
    assert [event.action for event in told] == ["webhook set"] * 3 + ["webhook removed"]
    assert told[0].details == {
        "name": "chat", "kind": "generic", "host": "127.0.0.1", "events": ["filed", "decided"], "active": True
    }  # fmt: skip
    assert audit_check.verify()[1] is None


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"url": "http://example.com/"}, "Over http messages could be read"),
        ({"url": "https://a:b@example.com/"}, "neither a user name"),
        ({"secret": None}, "needs a secret"),
        ({"secret": "short"}, "at least 16"),
        ({"events": None}, "required"),
        ({"events": ["test"]}, "not one of the available choices"),
        ({"kind": "irc"}, "not one of the available choices"),
    ],
)
def test_what_cannot_work_is_refused(
    root: Client, receiver: Receiver, wrong: dict[str, Any], says: str
) -> None:
    answer = root.post(ADD, form(receiver, **wrong))
    assert answer.status_code == 200
    assert says in answer.text
    assert not Webhook.objects.exists()


def test_a_chat_needs_no_secret(root: Client, receiver: Receiver) -> None:
    assert root.post(ADD, form(receiver, kind="slack", secret="")).status_code == 302


def test_a_test_is_sent_and_the_log_shows_how_it_went(
    root: Client, receiver: Receiver, sender: Sender
) -> None:
    webhook = hook(receiver, "filed")
    chosen = {"action": "send_a_test", "_selected_action": [webhook.pk]}
    assert "A test is sent to chat" in root.post("/admin/supervise/webhook/", chosen, follow=True).text
    tell(sender)
    assert [facts["event"] for facts in receiver.facts] == ["test"]
    log = root.get("/admin/supervise/delivery/").text
    assert "delivered" in log
    delivery = Delivery.objects.get()
    assert root.get(f"/admin/supervise/delivery/{delivery.pk}/change/").status_code == 200
    assert root.post(f"/admin/supervise/delivery/{delivery.pk}/delete/", {"post": "yes"}).status_code == 403


def test_who_may_only_look_does_not_see_the_url(receiver: Receiver, viewer: User) -> None:
    from django.contrib.auth.models import Permission

    webhook = hook(receiver, "filed")
    for codename in ("view_webhook", "view_delivery"):
        viewer.user_permissions.add(Permission.objects.get(codename=codename))
    browser = browser_of(User.objects.get(pk=viewer.pk))
    for page in (f"{webhook.pk}/change/", ""):
        assert "room=1" not in browser.get(f"/admin/supervise/webhook/{page}").text
    browser.post("/admin/supervise/webhook/", {"action": "send_a_test", "_selected_action": [webhook.pk]})
    assert not Delivery.objects.exists()


def test_given_up_ones_are_sent_again_from_the_log(
    root: Client, receiver: Receiver, sender: Sender, agent_a: Bottle
) -> None:
    hook(receiver, "filed")
    ask(agent_a)
    outbox.spool()
    Delivery.objects.update(state="given up", attempts=60)
    chosen = {"action": "send_again", "_selected_action": [Delivery.objects.get().pk]}
    assert "1 of 1 are tried again" in root.post("/admin/supervise/delivery/", chosen, follow=True).text
    tell(sender)
    assert len(receiver.got) == 1
    assert Proposal.objects.get().is_pending
