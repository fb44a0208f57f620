"""The queue, a proposal's page and the history: who sees them, in what order, and at what cost."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from botbottle.models import Bottle
from supervise.models import Decision, Proposal
from supervise.proposals import decisions, snooze
from tests.supervise.console.conftest import browser_of
from tests.support.full_disk import no_room
from tests.support.proposals import ask, ask_gate, ask_image, seen


def targets(page: str) -> list[str]:
    return re.findall(r'<h2 id="target-[^"]*"><a [^>]*><bdi>([^<]*)</bdi>', page)


def since_of(page: str) -> str:
    found = re.search(r'data-since="([^"]+)"', page)
    assert found
    return found[1]


NARROW = {"path_allowlist": ["/x"], "methods": ["GET"], "lease": {"ttl_seconds": 60}}


def test_the_riskiest_come_first_then_the_call_that_ends_soonest(
    olivia: Client, agent_a: Bottle, agent_b: Bottle, settings: Any
) -> None:
    settings.SUPERVISE_RESPONSE_TIMEOUT_SECONDS = 60
    low = ask(agent_a, "low.example.com", **NARROW)
    ask(agent_a, "high.example.com", auth={"scheme": "Bearer", "token_ref": "TOKEN"})
    over = ask(agent_b, "over.example.com")
    ask(agent_b, "soon.example.com")
    ask(agent_b, "later.example.com")
    Proposal.objects.filter(pk=over.pk).update(asked_at=timezone.now() - timedelta(minutes=5))
    assert low.risk_when_filed == 0
    page = olivia.get("/").text
    assert targets(page) == [
        "high.example.com", "soon.example.com", "later.example.com", "over.example.com", "low.example.com",
    ]  # fmt: skip
    assert (
        page.index("▲</span> high risk")
        < page.index("◆</span> medium risk")
        < page.index("●</span> low risk")
    )


def test_many_harmless_asks_do_not_hide_a_risky_one(
    olivia: Client, agent_a: Bottle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervise.console.queue_query.PAGE", 3)
    for number in range(5):
        ask(agent_a, f"h{number}.example.com", **NARROW)
    ask(agent_a, "api.example.com", auth={"scheme": "Bearer", "token_ref": "API_TOKEN"})
    assert targets(olivia.get("/").text)[0] == "api.example.com"


def test_a_card_says_all_that_matters(olivia: Client, agent_a: Bottle) -> None:
    Bottle.objects.filter(pk=agent_a.pk).update(manifest="backend: local\nagent: claude\n")
    for why in ("to fetch the docs", "again"):
        proposal = ask(
            agent_a, "api.example.com", why, path_allowlist=["/docs"], methods=["GET"],
            lease={"ttl_seconds": 3600},
        )  # fmt: skip
    page = olivia.get("/").text
    for words in (
        "agent-a", "claude", "egress-block", "GET on api.example.com under /docs, for 1 hour", "low risk",
        "first route to this host", "to fetch the docs", "agent says, unverified", "asked 2 times",
        f'data-deadline="{int((Proposal.objects.get().asked_at + timedelta(seconds=30)).timestamp())}"',
        "Approve…", "Modify…", "Reject…", "Snooze…", f"/proposals/{proposal.pk}/?open=approve", "(1) Queue",
    ):  # fmt: skip
        assert words in page, words


def test_a_proposals_page_says_everything(olivia: Client, agent_a: Bottle) -> None:
    proposal = ask(agent_a, why="to fetch the docs", path_allowlist=["/docs"], methods=["GET"])
    page = olivia.get(f"/proposals/{proposal.pk}/").text
    for words in (
        "newly reachable: GET on api.example.com under /docs", "first route to this host",
        "to fetch the docs", "text from the agent, unverified",
        "route api.example.com", "gate api.example.com", "Side by side",
        'name="seen_digest"', "First time: nothing about it was decided for this bottle before.",
    ):  # fmt: skip
        assert words in page, words


@pytest.mark.parametrize("panel", ["approve", "modify", "reject", "snooze"])
def test_a_link_opens_one_panel(olivia: Client, agent_a: Bottle, panel: str) -> None:
    page = olivia.get(f"/proposals/{ask(agent_a).pk}/?open={panel}").text
    assert re.findall(r'data-panel="(\w+)" open', page) == [panel]


@pytest.fixture
def two_bottles(agent_a: Bottle, agent_b: Bottle) -> tuple[Bottle, Bottle]:
    return agent_a, agent_b


FILTERS = [
    ("risk=high", ["image", "token"]), ("risk=low", ["low"]), ("tool=capability-block", ["image"]),
    ("bottle=agent-b", ["token"]), ("q=LOW.exam", ["low"]), ("q=agent-b", ["token"]), ("q=nothing-such", []),
    ("risk=junk&tool=junk&page=junk&show=junk", ["image", "token", "low"]), ("page=2", []),
    ("page=٣", ["image", "token", "low"]), ("show=snoozed", ["aside"]), ("q=%00", ["image", "token", "low"]),
]  # fmt: skip


def test_the_address_filters(olivia: Client, operator: User, two_bottles: tuple[Bottle, Bottle]) -> None:
    agent_a, agent_b = two_bottles
    made = {
        "low": ask(agent_a, "low.example.com", **NARROW),
        "image": ask_image(agent_a),
        "token": ask(agent_b, "token.example.com", auth={"scheme": "Bearer", "token_ref": "TOKEN"}),
        "aside": ask(agent_a, "aside.example.com"),
    }
    snooze.snooze(made["aside"].pk, actor=operator, until=timezone.now() + timedelta(hours=1))
    for query, shown in FILTERS:
        for path in (f"/?{query}", f"/queue/list?{query}"):
            found = re.findall(r'<article class="card[^"]*" id="card-([^"]+)"', olivia.get(path).text)
            assert sorted(found) == sorted(str(made[name].pk) for name in shown)
        assert sorted(olivia.get(f"/queue/state?{query}").json()["cards"]) == sorted(
            str(made[name].pk) for name in shown
        )


def test_a_proposal_is_found_by_the_beginning_of_its_id(olivia: Client, agent_a: Bottle) -> None:
    proposal = ask(agent_a)
    ask(agent_a, "other.example.com")
    assert targets(olivia.get(f"/?q={str(proposal.pk)[:13]}").text) == ["api.example.com"]


def test_a_filter_without_a_match_says_so(olivia: Client, agent_a: Bottle) -> None:
    ask(agent_a)
    assert "Nothing matches this filter." in olivia.get("/?q=nothing-such").text


def test_an_empty_queue_says_so(olivia: Client) -> None:
    assert "Nothing waits for you." in olivia.get("/").text


def test_each_tool_has_its_own_way_to_modify(olivia: Client, agent_a: Bottle) -> None:
    route, gate, image = ask(agent_a), ask_gate(agent_a), ask_image(agent_a)
    pages = {p.tool: olivia.get(f"/proposals/{p.pk}/").text for p in (route, gate, image)}
    assert 'name="paths"' in pages["egress-block"]
    assert "/modify" not in pages["pipelock-block"]
    assert "gate.example.com" in pages["pipelock-block"]
    assert '<textarea name="dockerfile"' in pages["capability-block"]


def test_a_viewer_looks_and_has_no_forms(vera: Client, agent_a: Bottle) -> None:
    proposal = ask(agent_a)
    for path in ("/", f"/proposals/{proposal.pk}/", f"/queue/cards?id={proposal.pk}", "/queue/list"):
        page = vera.get(path).text
        assert "api.example.com" in page
        assert "/approve" not in page and "open=approve" not in page and 'class="pick"' not in page
    assert "you need “decide_proposal” to decide" in vera.get(f"/proposals/{proposal.pk}/").text


@pytest.mark.parametrize("is_staff", [True, False])
def test_without_permission_there_is_nothing_to_see(db: None, agent_a: Bottle, is_staff: bool) -> None:
    proposal = ask(agent_a, "secret.example.com")
    client = browser_of(User.objects.create_user("nils", is_staff=is_staff))
    for path in (
        "/",
        "/queue/state",
        "/queue/list",
        f"/queue/cards?id={proposal.pk}",
        "/history/",
        "/refusals/",
        f"/bulk/?verb=reject&id={proposal.pk}",
        f"/proposals/{proposal.pk}/",
    ):
        answer = client.get(path)
        assert answer.status_code == (403 if is_staff else 302)
        assert "secret.example.com" not in answer.text


def test_whoever_may_decide_may_look(db: None) -> None:
    user = User.objects.create_user("dora", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="decide_proposal"))
    assert browser_of(user).get("/").status_code == 200


def test_signing_in_leads_back_to_the_page(client: Client, agent_a: Bottle, operator: User) -> None:
    path = f"/proposals/{ask(agent_a).pk}/"
    to_login = client.get(path)
    assert to_login.headers["Location"] == f"/admin/login/?next={path}"
    entered = {"username": "olivia", "password": "correct-horse-battery", "next": path}
    assert client.post("/admin/login/", entered).headers["Location"] == path


def test_the_number_of_queries_does_not_grow_with_the_cards(
    olivia: Client,
    operator: User,
    two_bottles: tuple[Bottle, Bottle],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent_a, agent_b = two_bottles
    monkeypatch.setattr("supervise.console.queue_query.PAGE", 500)
    monkeypatch.setattr("supervise.console.views.PAGE", 500)
    monkeypatch.setattr("supervise.console.views.HISTORY_PAGE", 500)

    def fill(first: int, last: int) -> None:
        for number in range(first, last):
            ask((agent_a, agent_b)[number % 2], f"h{number}.example.com")
        done = ask(agent_a, f"d{last}.example.com")
        decisions.reject(done.pk, actor=operator, seen_digest=seen(done), note="no")

    def queries(path: str) -> int:
        ids = Proposal.objects.values_list("pk", flat=True)
        address = path + "&".join(f"id={pk}" for pk in ids) if path.endswith("?") else path
        with CaptureQueriesContext(connection) as captured:
            assert olivia.get(address).status_code == 200
        return len(captured)

    fill(0, 5)
    pages = ("/", "/queue/state", "/queue/list", "/queue/cards?", "/history/")
    few = [queries(path) for path in pages]
    fill(5, 40)
    assert [queries(path) for path in pages] == few


def test_more_cards_than_fit_are_counted_and_have_pages(
    olivia: Client, agent_a: Bottle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervise.console.queue_query.PAGE", 2)
    for number in range(5):
        ask(agent_a, f"h{number}.example.com")
    first, last = olivia.get("/").text, olivia.get("/?page=3").text
    assert "<strong>3</strong> more wait" in first and "?page=2" in first
    assert len(targets(first)) == 2 and len(targets(last)) == 1
    assert "the 4 before" in last and 'data-after="0" hidden' in last
    assert olivia.get("/queue/state").json()["after"] == 3


def test_the_state_names_pending_cards_and_changes_with_them(olivia: Client, agent_a: Bottle) -> None:
    proposal = ask(agent_a)
    before = olivia.get("/queue/state").json()
    assert before["counts"] == {"pending": 1, "high": 0, "waiting": 1, "snoozed": 0, "running": 0}
    assert before["proxy"]["label"] == "off"
    card = olivia.get(f"/queue/cards?id={proposal.pk}&id=junk").text
    assert f'data-state="{before["cards"][str(proposal.pk)]}"' in card
    ask(agent_a)  # joins
    assert olivia.get("/queue/state").json()["cards"] != before["cards"]


def test_the_state_counts_what_came_after_the_page_was_made(
    olivia: Client, operator: User, agent_a: Bottle
) -> None:
    early = ask(agent_a, "early.example.com")
    since = since_of(olivia.get("/").text)
    ask(agent_a, "new.example.com")
    ask(agent_a, "another.example.com")
    arrived = olivia.get(f"/queue/state?since={since}").json()["arrived"]
    assert arrived == 2
    assert olivia.get(f"/queue/state?since={since}&q=another").json()["arrived"] == 1
    for junk in ("", "junk", "1763420000.5", "1@nan", "1@1e99", "1@-1e99", "-1@1", "²@1", "9" * 30 + "@1"):
        assert olivia.get(f"/queue/state?since={junk}").json()["arrived"] == 3, "nothing is lost by it"
    Proposal.objects.filter(pk=early.pk).update(snoozed_until=timezone.now())  # wakes now
    assert olivia.get(f"/queue/state?since={since}").json()["arrived"] == 3


def test_what_came_while_a_page_was_made_and_is_on_it_is_not_new(olivia: Client, agent_a: Bottle) -> None:
    since = since_of(olivia.get("/").text)
    one, other = ask(agent_a, "one.example.com"), ask(agent_a, "other.example.com")
    told = f"/queue/state?since={since}"
    assert olivia.get(f"{told}&id={one.pk}&id=junk").json()["arrived"] == 1
    assert olivia.get(f"{told}&id={one.pk}&id={other.pk}").json()["arrived"] == 0


def test_what_is_put_aside_or_back_is_new_where_it_comes_to(
    olivia: Client, operator: User, agent_a: Bottle
) -> None:
    proposal = ask(agent_a)
    aside = since_of(olivia.get("/?show=snoozed").text)
    snooze.snooze(proposal.pk, actor=operator, until=timezone.now() + timedelta(hours=1))
    assert olivia.get(f"/queue/state?show=snoozed&since={aside}").json()["arrived"] == 1
    queue = since_of(olivia.get("/").text)
    assert olivia.get(f"/queue/state?since={queue}").json()["arrived"] == 0
    snooze.wake(proposal.pk, actor=operator)
    assert olivia.get(f"/queue/state?since={queue}").json()["arrived"] == 1
    assert olivia.get(f"/queue/state?show=snoozed&since={aside}").json()["arrived"] == 0


def test_a_card_decided_meanwhile_says_by_whom(olivia: Client, operator: User, agent_a: Bottle) -> None:
    proposal = ask(agent_a)
    decisions.reject(proposal.pk, actor=operator, seen_digest=seen(proposal), note="not needed")
    card = olivia.get(f"/queue/cards?id={proposal.pk}").text
    assert "is-decided" in card and "olivia" in card and "not needed" in card
    assert "Approve…" not in card


@pytest.mark.django_db(transaction=True)
def test_the_history_tells_who_when_why_and_whether_it_is_live(
    olivia: Client, operator: User, agent_a: Bottle, agent_b: Bottle, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, refused, stuck = ask(agent_a, "live.example.com"), ask(agent_a, "no.example.com"), ask(agent_b)
    decisions.approve(live.pk, actor=operator, seen_digest=seen(live), note="for the docs")
    decisions.reject(refused.pk, actor=operator, seen_digest=seen(refused), note="not needed")

    monkeypatch.setattr("egress.tables.publishing.write_atomically", no_room)
    decisions.approve(stuck.pk, actor=operator, seen_digest=seen(stuck))
    own_pages = "".join(olivia.get(f"/proposals/{proposal.pk}/").text for proposal in (live, refused, stuck))
    for page in (olivia.get("/history/").text, own_pages):
        for words in (
            "live.example.com", "live v2", "for the docs", "rejected", "not needed", "olivia",
            "approved, not live:", "No space left on device",
        ):  # fmt: skip
            assert words in page, words


def test_the_history_has_pages(
    olivia: Client, operator: User, agent_a: Bottle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervise.console.views.HISTORY_PAGE", 2)
    for number in range(5):
        proposal = ask(agent_a, f"h{number}.example.com")
        decisions.reject(proposal.pk, actor=operator, seen_digest=seen(proposal), note="no")
    first = olivia.get("/history/").text
    assert targets_of(first) == ["h4", "h3"] and link(first, "newer") is None
    second = olivia.get(link(first, "older")).text
    assert targets_of(second) == ["h2", "h1"]
    last = olivia.get(link(second, "older")).text
    assert targets_of(last) == ["h0"] and link(last, "older") is None
    assert targets_of(olivia.get(link(last, "newer")).text) == ["h2", "h1"]
    assert targets_of(olivia.get(link(second, "newer")).text) == ["h4", "h3"]
    for junk in ("page=2", "before=junk", "before=1-1", "before=-", "after=1", f"after={'9' * 30}-1"):
        assert targets_of(olivia.get(f"/history/?{junk}").text) == ["h4", "h3"], junk


def targets_of(page: str) -> list[str]:
    return re.findall(r"on (h\d)\.example\.com", page)


def link(page: str, words: str) -> Any:
    found = re.search(rf'href="(\?[^"]*)">[‹ ]*{words}', page)
    return f"/history/{found[1]}" if found else None


def test_decisions_of_one_moment_are_each_on_one_page(
    olivia: Client, operator: User, agent_a: Bottle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervise.console.views.HISTORY_PAGE", 2)
    for number in range(5):
        proposal = ask(agent_a, f"h{number}.example.com")
        decisions.reject(proposal.pk, actor=operator, seen_digest=seen(proposal), note="no")
    Decision.objects.update(created_at=timezone.now())
    found, address = [], "/history/"
    while address:
        page = olivia.get(address).text
        found += targets_of(page)
        address = link(page, "older")
    assert found == ["h4", "h3", "h2", "h1", "h0"]
