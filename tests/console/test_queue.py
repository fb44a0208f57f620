"""The queue, a proposal's page and the history: who sees them, in what order, and at what cost."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from botbottle.models import Bottle
from supervise import decisions
from tests.asking import ask, ask_gate, ask_image, seen
from tests.console.conftest import browser_of


def targets(page: str) -> list[str]:
    return re.findall(r'<h2 id="target-[^"]*"><a [^>]*><bdi>([^<]*)</bdi>', page)


def test_it_shows_the_riskiest_first_then_the_newest(
    olivia: Client, agent_a: Bottle, agent_b: Bottle
) -> None:
    ask(agent_a, "low.example.com", path_allowlist=["/x"], methods=["GET"], lease={"ttl_seconds": 60})
    ask(agent_a, "high.example.com", auth={"scheme": "Bearer", "token_ref": "TOKEN"})
    ask(agent_b, "older.example.com")
    ask(agent_b, "newer.example.com")
    page = olivia.get("/").text
    assert targets(page) == ["high.example.com", "newer.example.com", "older.example.com", "low.example.com"]
    assert page.index("high risk") < page.index("medium risk") < page.index("low risk")


def test_a_card_says_all_that_matters(olivia: Client, agent_a: Bottle) -> None:
    ask(
        agent_a,
        "api.example.com",
        "to fetch the docs",
        path_allowlist=["/docs"],
        methods=["GET"],
        lease={"ttl_seconds": 3600},
    )
    ask(agent_a, "api.example.com", path_allowlist=["/docs"], methods=["GET"], lease={"ttl_seconds": 3600})
    page = olivia.get("/").text
    for words in (
        "agent-a", "egress-block", "GET on api.example.com under /docs, for 1 hour", "low risk",
        "first route to this host", "newly reachable: GET on api.example.com under /docs",
        "to fetch the docs", "text from the agent, unverified", "asked 2 times", "route api.example.com",
        "gate api.example.com",
        'name="seen_digest"', "Approve…", "Modify…", "Reject…", "(1) Queue",
    ):  # fmt: skip
        assert words in page, words


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
    for path in ("/", f"/proposals/{proposal.pk}/", f"/proposals/{proposal.pk}/card"):
        page = vera.get(path).text
        assert "api.example.com" in page
        assert "/approve" not in page
        assert "deciding needs the permission" in page


@pytest.mark.parametrize("is_staff", [True, False])
def test_without_permission_there_is_nothing_to_see(db: None, agent_a: Bottle, is_staff: bool) -> None:
    proposal = ask(agent_a, "secret.example.com")
    client = browser_of(User.objects.create_user("nils", is_staff=is_staff))
    for path in (
        "/",
        "/queue/state",
        "/history/",
        f"/proposals/{proposal.pk}/",
        f"/proposals/{proposal.pk}/card",
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


@pytest.mark.parametrize("path", ["/", "/queue/state", "/history/"])
def test_the_number_of_queries_does_not_grow_with_the_cards(
    olivia: Client, operator: User, agent_a: Bottle, path: str
) -> None:
    def fill(first: int, last: int) -> None:
        for number in range(first, last):
            ask(agent_a, f"h{number}.example.com")
            done = ask(agent_a, f"d{number}.example.com")
            decisions.reject(done.pk, actor=operator, seen_digest=seen(done), note="no")

    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert olivia.get(path).status_code == 200
        return len(captured)

    fill(0, 3)
    few = queries()
    fill(3, 30)
    assert queries() == few


def test_more_cards_than_fit_are_counted(
    olivia: Client, agent_a: Bottle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervise.console.QUEUE_LIMIT", 2)
    for number in range(3):
        ask(agent_a, f"h{number}.example.com")
    assert "1 more proposal waits" in olivia.get("/").text


def test_the_state_names_pending_cards_and_changes_with_them(olivia: Client, agent_a: Bottle) -> None:
    proposal = ask(agent_a)
    before = olivia.get("/queue/state").json()
    assert before["counts"] == {"pending": 1, "bottles": 1}
    assert olivia.get("/queue/state").json() == before
    assert (
        f'data-state="{before["cards"][str(proposal.pk)]}"'
        in olivia.get(f"/proposals/{proposal.pk}/card").text
    )
    ask(agent_a)  # joins
    assert olivia.get("/queue/state").json()["cards"] != before["cards"]


@pytest.mark.django_db(transaction=True)
def test_the_history_tells_who_when_why_and_whether_it_is_live(
    olivia: Client, operator: User, agent_a: Bottle, agent_b: Bottle, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, refused, stuck = ask(agent_a, "live.example.com"), ask(agent_a, "no.example.com"), ask(agent_b)
    decisions.approve(live.pk, actor=operator, seen_digest=seen(live), note="for the docs")
    decisions.reject(refused.pk, actor=operator, seen_digest=seen(refused), note="not needed")

    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("egress.store.write_atomically", full)
    decisions.approve(stuck.pk, actor=operator, seen_digest=seen(stuck))
    own_pages = "".join(olivia.get(f"/proposals/{proposal.pk}/").text for proposal in (live, refused, stuck))
    for page in (olivia.get("/history/").text, own_pages):
        for words in (
            "live.example.com", "live as table version 2", "for the docs", "rejected", "not needed", "olivia",
            "approved, not live:", "No space left on device",
        ):  # fmt: skip
            assert words in page, words


def test_the_history_has_pages(
    olivia: Client, operator: User, agent_a: Bottle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervise.console.HISTORY_PAGE", 2)
    for number in range(3):
        proposal = ask(agent_a, f"h{number}.example.com")
        decisions.reject(proposal.pk, actor=operator, seen_digest=seen(proposal), note="no")
    first, second = olivia.get("/history/").text, olivia.get("/history/?page=2").text
    assert "h2.example.com" in first and "h0.example.com" not in first
    assert "h0.example.com" in second and "page 2 of 2" in second
    assert "page 2 of 2" in olivia.get("/history/?page=999").text
    assert "page 1 of 2" in olivia.get("/history/?page=junk").text
