"""The bottles' pages: what they show, what their forms change, and for whom."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import transaction
from django.test import Client
from django.utils import timezone

from botbottle.launch import journal
from botbottle.models import Bottle
from egress.contract import snapshot
from egress.models import Publication, RouteTableVersion, TrafficRecord
from egress.policy.routes import Auth, Lease, Route
from egress.tables import homes, publishing, versions
from supervise import audit_check
from supervise.access import assignments
from supervise.bottles import actions, lifecycle
from supervise.bottles import records as bottles
from supervise.errors import BadAsk, NotPermitted, StaleReview, TooRisky
from supervise.models import AuditEvent
from supervise.proposals import decisions
from tests.supervise.console.conftest import browser_of
from tests.support.proposals import HOSTILE, ask, seen

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def operator(operator: User) -> User:
    """One who may also start and stop."""
    operator.user_permissions.add(Permission.objects.get(codename="run_bottle"))
    return User.objects.get(pk=operator.pk)


@pytest.fixture
def olivia(operator: User) -> Client:
    return browser_of(operator)


def grow(bottle: Bottle, *routes: Route, cause: str = "tests") -> int:
    with transaction.atomic():
        newest = versions.lock(bottle)
        table = newest.table
        for route in routes:
            table = table.with_route(route)
        versions.append(newest, table, author="tests", cause=cause)
    return publishing.publish(bottle)


def traffic(
    bottle: Bottle, host: str, verdict: str = "refused", *, hours_ago: float = 0, times: int = 1
) -> None:
    TrafficRecord.objects.bulk_create(
        TrafficRecord(
            bottle=bottle, at=timezone.now() - timedelta(hours=hours_ago), method="GET", scheme="https",
            host=host, path="/", route=host if verdict == "allowed" else "", table_version=1, verdict=verdict,
            reason="ok" if verdict == "allowed" else "no-route", status=200, bytes_out=0, bytes_in=0,
            duration_ms=1,
        )
        for _ in range(times)
    )  # fmt: skip


def text_of(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


# --- looking


def test_the_list_shows_state_backend_problem_and_traffic(
    olivia: Client, agent_a: Bottle, agent_b: Bottle, viewer: User
) -> None:
    Bottle.objects.filter(pk=agent_a.pk).update(state="running", started_at=timezone.now())
    Bottle.objects.filter(pk=agent_b.pk).update(state="stopped", exit_code=137, problem="no image <b>")
    assignments.assign(agent_b, viewer, author="root")
    traffic(agent_a, "one.example.com", "allowed", times=3)
    traffic(agent_a, "two.example.com", times=2)
    traffic(agent_a, "old.example.com", hours_ago=30)
    bottles.create("gone", author="tests")
    bottles.delete("gone", author="tests")
    page = olivia.get("/bottles/").text
    text = text_of(page)
    assert "agent-a running since" in text
    assert "3 requests allowed, 2 refused" in text
    assert "agent-b stopped exit code 137" in text
    assert "Last start failed: no image &lt;b&gt;" in text
    assert "operators: vera" in text
    assert "gone" not in text
    assert page.count('<svg class="plot"') == 1, "where nothing went there is nothing to plot"


def test_what_a_start_says_is_on_the_bottles_page_while_it_goes_on_and_afterwards(
    olivia: Client, agent_a: Bottle
) -> None:
    assert "Output of the last start" not in olivia.get("/bottles/agent-a/").text
    directory = homes.bottle_directory(agent_a)
    directory.mkdir(parents=True, exist_ok=True)
    journal.append(directory, journal.STARTING, who="tests")
    with lifecycle._with_start_log(directory, lambda _: None) as tell:
        tell("limits.pids is not enforced <b>\u202e")
        Bottle.objects.update(state="starting")
        page = olivia.get("/bottles/agent-a/").text
        assert "limits.pids is not enforced &lt;b&gt;" in page
        assert "\u202e" not in page
        assert '<details class="part" open>' in page
    Bottle.objects.update(state="running")
    page = olivia.get("/bottles/agent-a/").text
    assert "limits.pids is not enforced" in page
    assert '<details class="part">' in page
    bottles.delete("agent-a", author="tests")
    bottles.create("agent-a", author="tests")
    assert "Output of the last start" not in olivia.get("/bottles/agent-a/").text, "an heir inherits nothing"


def test_an_empty_list_says_how_to_begin(olivia: Client) -> None:
    assert "manage.py bottle init" in olivia.get("/bottles/").text


def test_a_bottles_page_shows_routes_with_lease_and_last_use(olivia: Client, agent_a: Bottle) -> None:
    now = timezone.now()
    grow(
        agent_a,
        Route("used.example.com", path_allowlist=("/docs", "/api"), methods=("GET",)),
        Route("unused.example.com", auth=Auth("Bearer", "GITHUB_TOKEN")),
        Route("leased.example.com", lease=Lease(now + timedelta(days=1), 5, now)),
        Route("over.example.com", lease=Lease(now - timedelta(seconds=1), None, now)),
    )
    traffic(agent_a, "used.example.com", "allowed", hours_ago=40, times=4)
    page = olivia.get("/bottles/agent-a/").text
    rows = [text_of(row) for row in re.findall(r"<tr.*?</tr>", page, re.DOTALL)]
    used = next(row for row in rows if row.startswith("used."))
    assert "/api /docs GET none no end" in used and "(4 in the record)" in used
    assert (now - timedelta(hours=40)).strftime("%Y-%m-%d %H:%M") in used
    unused = next(row for row in rows if row.startswith("unused."))
    assert unused == "unused.example.com all all GITHUB_TOKEN no end not in the record Change… Withdraw…"
    leased = next(row for row in rows if row.startswith("leased."))
    assert (now + timedelta(days=1)).strftime("%Y-%m-%d %H:%M") in leased and "5 uses" in leased
    assert "over" in next(row for row in rows if row.startswith("over.")).split()


def test_it_shows_the_most_refused_hosts_of_the_period(olivia: Client, agent_a: Bottle) -> None:
    traffic(agent_a, "often.example.com", times=3)
    traffic(agent_a, "once.example.com")
    traffic(agent_a, "older.example.com", hours_ago=5 * 24, times=9)
    day = text_of(olivia.get("/bottles/agent-a/").text)
    assert day.index("often.example.com no-route 3") < day.index("once.example.com no-route 1")
    assert "older.example.com" not in day
    fortnight = text_of(olivia.get("/bottles/agent-a/?period=fortnight").text)
    assert "older.example.com no-route 9" in fortnight
    assert "13 refused" in fortnight


def test_what_agents_chose_is_shown_inert(olivia: Client, agent_a: Bottle) -> None:
    traffic(agent_a, HOSTILE.replace("\x00", "").replace("\ud800", ""))
    page = olivia.get("/bottles/agent-a/").text
    assert "<script>alert" not in page
    assert "\u202e" not in page and "⟦U+202E⟧" in page


def test_versions_name_author_and_cause_and_lead_to_the_proposal(
    olivia: Client, operator: User, agent_a: Bottle
) -> None:
    proposal = ask(agent_a)
    decisions.approve(proposal.pk, actor=operator, seen_digest=seen(proposal))
    grow(agent_a, Route("by.hand.example.com"), cause="proposal of mine")
    page = olivia.get("/bottles/agent-a/").text
    assert f'<a href="/proposals/{proposal.pk}/">proposal {str(proposal.pk)[:8]}</a>' in page
    assert "proposal of mine" in page
    assert re.search(r"v3</strong> <span class=\"badge badge-low\">live", page)


def test_any_two_versions_are_compared_in_either_direction(olivia: Client, agent_a: Bottle) -> None:
    grow(agent_a, Route("one.example.com"))
    grow(agent_a, Route("two.example.com", methods=("GET",)))
    there = text_of(olivia.get("/bottles/agent-a/?from=1&to=3").text)
    assert "route added: one.example.com" in there and "route added: two.example.com" in there
    assert "+ route two.example.com" in there
    back = text_of(olivia.get("/bottles/agent-a/?from=3&to=2").text)
    assert "route removed: two.example.com" in back and "route removed: one" not in back
    assert "They hold the same" in text_of(olivia.get("/bottles/agent-a/?from=2&to=2").text)


@pytest.mark.parametrize("query", ["from=1&to=99", "from=x&to=1", "from=1", "from=-1&to=1", "from=²&to=1"])
def test_a_comparison_with_nothing_says_so(olivia: Client, agent_a: Bottle, query: str) -> None:
    answer = olivia.get(f"/bottles/agent-a/?{query}")
    assert answer.status_code == 200
    assert "does not have both versions" in answer.text


def test_many_versions_come_in_pages(olivia: Client, agent_a: Bottle) -> None:
    for number in range(25):
        grow(agent_a, Route(f"n{number}.example.com"))
    assert olivia.get("/bottles/agent-a/").text.count("Roll back</button>") == 19
    assert olivia.get("/bottles/agent-a/?page=2").text.count("Roll back</button>") == 6


@pytest.mark.parametrize("path", ["/bottles/", "/bottles/agent-a/"])
def test_the_number_of_queries_does_not_grow(
    olivia: Client, agent_a: Bottle, operator: User, path: str, django_assert_num_queries: Any
) -> None:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    grow(agent_a, Route("one.example.com"))
    assignments.assign(agent_a, operator, author="root")
    traffic(agent_a, "one.example.com", "allowed")
    olivia.get(path)
    with CaptureQueriesContext(connection) as few:
        olivia.get(path)
    for number in range(12):
        other = bottles.create(f"more-{number}", author="tests").bottle
        assignments.assign(other, operator, author="root")
        grow(agent_a, Route(f"n{number}.example.com"))
        for bottle in (agent_a, other):
            traffic(bottle, f"n{number}.example.com", "allowed")
            traffic(bottle, f"r{number}.example.com", hours_ago=number)
    with django_assert_num_queries(len(few)):
        olivia.get(path)


def test_a_bottles_page_says_what_to_do_about_a_problem_of_the_proxys(
    olivia: Client, operator: User, agent_a: Bottle
) -> None:
    def hint() -> str:
        page = olivia.get("/bottles/agent-a/").text
        return "".join(re.findall('<p class="quiet"><strong>A secret:.*', page))

    assert hint() == ""
    Publication.objects.update(proxy_problems=["There is no secret X."])
    assert "set it, or withdraw its route" in hint() and "SIGHUP" in hint()
    operator.user_permissions.add(Permission.objects.get(codename="change_secret"))
    assert 'set it under <a href="/admin/egress/secret/">Secrets</a>, or' in hint()


def test_a_bottle_that_is_not_there_is_404(olivia: Client, agent_a: Bottle) -> None:
    bottles.delete("agent-a", author="tests")
    for path in ("/bottles/agent-a/", "/bottles/nobody/"):
        assert olivia.get(path).status_code == 404
    assert olivia.post("/bottles/agent-a/rotate").status_code == 404


def test_a_viewer_sees_all_of_it_and_no_button(vera: Client, agent_a: Bottle) -> None:
    grow(agent_a, Route("one.example.com"))
    page = vera.get("/bottles/agent-a/").text
    assert "one.example.com" in page
    main = page[page.index('id="content"') :]
    assert 'method="post"' not in main


# --- rolling back


def rolled_back(client: Client, **fields: Any) -> Any:
    return client.post("/bottles/agent-a/rollback", fields, follow=True)


def load(bottle: Bottle) -> Any:
    directory = homes.bottle_directory(bottle)
    return snapshot.load((directory / "routes.yaml").read_text(), (directory / "gate.yaml").read_text())


def test_one_click_rolls_back_publishes_and_is_recorded(olivia: Client, agent_a: Bottle) -> None:
    grow(agent_a, Route("one.example.com"))
    grow(agent_a, Route("two.example.com"))
    page = olivia.get("/bottles/agent-a/").text
    form = re.search(r'action="/bottles/agent-a/rollback">.*?name="version" value="2".*?</form>', page)
    assert form
    answer = rolled_back(olivia, version="2", seen_version="3")
    assert "The table is back at version 2, as version 4, and live." in answer.text
    assert (load(agent_a).version, [route.host for route in load(agent_a).table.routes]) == (
        4,
        ["one.example.com"],
    )
    made = RouteTableVersion.objects.get(bottle=agent_a, version=4)
    assert (made.author, made.cause) == ("olivia", "rollback to v2")
    event = AuditEvent.objects.latest("seq")
    assert (event.action, event.actor_name, event.bottle_slug) == ("rolled back", "olivia", "agent-a")
    assert event.details == {"from": 3, "to": 2, "table_version": 4}
    assert audit_check.verify()[1] is None


def test_what_changed_since_the_page_was_shown_stops_a_rollback(olivia: Client, agent_a: Bottle) -> None:
    grow(agent_a, Route("one.example.com"))
    grow(agent_a, Route("two.example.com"))
    answer = rolled_back(olivia, version="1", seen_version="2")
    assert answer.status_code == 409
    assert "version 3 is the newest" in answer.text
    changed = answer.text.split("What changed since you looked:")[1].split("</table>")[0]
    assert "route two.example.com" in changed and "+" in changed
    assert versions.current(agent_a).version == 3


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"version": "9", "seen_version": "2"}, "has no table version 9"),
        ({"version": "2", "seen_version": "2"}, "is identical to the current table"),
        ({"version": "x", "seen_version": "2"}, "has no table version 0"),
        ({"version": "1"}, "changed since you looked"),
        ({}, "changed since you looked"),
    ],
)
def test_a_rollback_that_makes_no_sense_changes_nothing(
    olivia: Client, agent_a: Bottle, fields: dict[str, str], says: str
) -> None:
    grow(agent_a, Route("one.example.com"))
    answer = rolled_back(olivia, **fields)
    assert answer.status_code in {400, 409}
    assert says in answer.text
    assert versions.current(agent_a).version == 2


def test_a_rollback_that_cannot_be_published_says_why_and_is_retried(
    olivia: Client, agent_a: Bottle, settings: Any, tmp_path: Any
) -> None:
    grow(agent_a, Route("one.example.com"))
    (tmp_path / "home_id").write_text(homes.home_id())  # the same home, in trouble
    home, settings.BOTTLE_HOME = settings.BOTTLE_HOME, tmp_path
    (tmp_path / "bottles").write_text("in the way")
    answer = rolled_back(olivia, version="1", seen_version="2")
    assert "not live yet: the route table could not be written" in answer.text
    settings.BOTTLE_HOME = home
    publishing.catch_up()
    assert (load(agent_a).version, load(agent_a).table.routes) == (3, ())
    assert Publication.objects.get(bottle=agent_a).problem == ""


def test_who_may_not_decide_for_the_bottle_does_not_roll_back(
    operator: User, second_operator: User, viewer: User, agent_a: Bottle
) -> None:
    grow(agent_a, Route("one.example.com"))
    assignments.assign(agent_a, operator, author="root")
    for actor in (second_operator, viewer):
        with pytest.raises(NotPermitted):
            actions.rollback("agent-a", 1, actor=actor, seen_version=2)
        assert "Roll back" not in browser_of(actor).get("/bottles/agent-a/").text
    assert actions.rollback("agent-a", 1, actor=operator, seen_version=2).version == 3


def test_one_operator_does_not_give_back_what_needs_two(
    operator: User, agent_a: Bottle, settings: Any
) -> None:
    settings.SUPERVISE_QUORUM = 2
    grow(agent_a, Route("api.example.com", auth=Auth("Bearer", "GITHUB_TOKEN")), Route("plain.example.com"))
    actions.rollback("agent-a", 1, actor=operator, seen_version=2)
    with pytest.raises(TooRisky, match="needs 2 operators"):
        actions.rollback("agent-a", 2, actor=operator, seen_version=3)
    grow(agent_a, Route("plain.example.com"))
    grow(agent_a, Route("other.example.com"))
    assert actions.rollback("agent-a", 4, actor=operator, seen_version=5).version == 6


def test_two_rollbacks_at_one_moment_are_one(operator: User, agent_a: Bottle) -> None:
    from functools import partial

    from tests.support.threads import together

    grow(agent_a, Route("one.example.com"))
    results = together([partial(actions.rollback, "agent-a", 1, actor=operator, seen_version=2)] * 4)
    assert sum(isinstance(result, RouteTableVersion) for result in results) == 1
    assert sum(isinstance(result, StaleReview | BadAsk) for result in results) == 3


# --- token, start and stop


def test_a_new_token_is_shown_once(olivia: Client, agent_a: Bottle) -> None:
    answer = olivia.post("/bottles/agent-a/rotate")
    found = re.search(r">(bbt_[\w-]+)</code>", answer.text)
    assert found
    agent_a.refresh_from_db()
    assert agent_a.accepts(found[1])
    assert "no-store" in answer.headers["Cache-Control"]
    assert "bbt_" not in olivia.get("/bottles/agent-a/").text
    event = AuditEvent.objects.latest("seq")
    assert (event.action, event.actor_name) == ("token rotated", "olivia")
    assert found[1] not in str(list(AuditEvent.objects.values()))


@pytest.mark.parametrize("verb", ["start", "stop"])
def test_start_and_stop_are_begun_for_who_may(
    olivia: Client, operator: User, agent_a: Bottle, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[tuple[str, str, User]] = []
    monkeypatch.setattr(lifecycle, "begin", lambda verb, slug, actor: begun.append((verb, slug, actor)))
    answer = olivia.post(f"/bottles/agent-a/{verb}", follow=True)
    assert "The bottle agent-a is being" in answer.text
    assert begun == [(verb, "agent-a", operator)]


@pytest.mark.parametrize("verb", ["rotate", "start", "stop"])
def test_others_do_not_run_an_assigned_bottle(
    operator: User, agent_a: Bottle, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "begin", lambda *_, **__: pytest.fail("it was begun"))
    otto = User.objects.create_user("otto", is_staff=True)
    otto.user_permissions.set(operator.user_permissions.all())
    assignments.assign(agent_a, operator, author="root")
    answer = browser_of(User.objects.get(pk=otto.pk)).post(f"/bottles/agent-a/{verb}")
    assert answer.status_code == 403
    assert "among the bottle&#x27;s operators" in answer.text
    assert "bbt_" not in answer.text
    assert not AuditEvent.objects.filter(action="token rotated").exists()


def test_who_is_signed_out_comes_back_to_the_bottle(client: Client, agent_a: Bottle) -> None:
    answer = client.post("/bottles/agent-a/rollback", {"version": "1"})
    assert answer.headers["Location"] == "/admin/login/?next=/bottles/agent-a/"
