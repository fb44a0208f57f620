"""The page of one route: who sees which form, what it says first, and what sending it does."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from botbottle.models import Bottle
from egress.policy.routes import Auth, Dlp, Lease, Route
from egress.tables import versions
from supervise.access import assignments
from supervise.models import AuditEvent, Proposal
from tests.supervise.console.conftest import browser_of
from tests.supervise.console.test_bottles_page import grow, load, text_of
from tests.support.proposals import ask, seen

pytestmark = pytest.mark.django_db(transaction=True)
HOST = "api.example.com"
PAGE = f"/bottles/agent-a/routes/{HOST}/"
API = Route(HOST, ("/a", "/b"), ("GET",), Auth("Bearer", "GITHUB_TOKEN"))
OTHER = Route("other.example.com")
SAME = {
    "host": HOST, "paths_are": "some", "paths": "/a\r\n/b", "methods_are": "some", "methods": ["GET"],
    "scheme": "Bearer", "token_ref": "GITHUB_TOKEN", "seen_version": "2",
}  # fmt: skip


@pytest.fixture
def bottle(agent_a: Bottle) -> Bottle:
    grow(agent_a, API, OTHER)
    return agent_a


def own(page: str) -> str:
    """Without the frame that every page has."""
    return page[page.index('id="content"') :]


# --- looking


def test_each_route_of_a_bottle_leads_to_its_page(olivia: Client, bottle: Bottle) -> None:
    page = olivia.get("/bottles/agent-a/").text
    for host in (HOST, OTHER.host):
        for panel in ("change", "withdraw"):
            assert f'href="/bottles/agent-a/routes/{host}/?open={panel}"' in page


def test_a_wildcards_page_is_found(olivia: Client, bottle: Bottle) -> None:
    grow(bottle, Route("*.example.org"))
    (address,) = set(re.findall(r'href="([^"]*example\.org/)\?open=', olivia.get("/bottles/agent-a/").text))
    page = olivia.get(address).text
    assert "*.example.org" in page and 'type="hidden" name="host"' in page, "it stays the route of its host"


@pytest.mark.parametrize("panel", ["change", "withdraw"])
def test_a_link_opens_one_form(olivia: Client, bottle: Bottle, panel: str) -> None:
    page = own(olivia.get(f"{PAGE}?open={panel}").text)
    assert re.findall(r'data-panel="(\w+)" open', page) == [panel]
    assert page.count('name="seen_version" value="2"') == 2


def test_it_says_what_a_withdrawal_cuts(olivia: Client, bottle: Bottle) -> None:
    text = text_of(olivia.get(PAGE).text)
    assert "no longer reachable: api.example.com; open connections that use its route are cut at once" in text
    assert "all other routes stay as they are" in text


def test_it_says_what_stays_reachable_all_the_same(olivia: Client, bottle: Bottle) -> None:
    grow(bottle, Route("*.example.com"))
    text = text_of(olivia.get(PAGE).text)
    assert "stays reachable by the route of *.example.com: all methods on all paths" in text


def test_the_form_starts_with_what_the_route_is(olivia: Client, bottle: Bottle) -> None:
    lease = Lease(timezone.now() + timedelta(days=1), 7, timezone.now())
    grow(bottle, Route(HOST, ("/x",), lease=lease, dlp=Dlp(False, True), pinned_addresses=("10.0.0.7",)))
    page = own(olivia.get(PAGE).text)
    assert '<option value="no" selected>' in page and 'name="searches_in" value="yes" checked' in page
    assert ">10.0.0.7</textarea>" in page and '<details class="operators" open>' in page
    assert 'name="lease_is" value="kept" checked' in page and "7 uses" in page
    assert "pinned to 10.0.0.7; scanned: answers" in text_of(olivia.get("/bottles/agent-a/").text)


def test_a_viewer_looks_and_changes_nothing(vera: Client, bottle: Bottle) -> None:
    page = own(vera.get(PAGE).text)
    assert HOST in page and "<form" not in page and "decide_proposal" in page
    assert "?open=" not in own(vera.get("/bottles/agent-a/").text)
    for verb in ("change", "withdraw"):
        answer = vera.post(f"{PAGE}{verb}", {**SAME, "paths": "/a"})
        assert answer.status_code == 403
        assert "needs the right to decide" in answer.text
    assert versions.current(bottle).version == 2


def test_others_do_not_change_an_assigned_bottle(otto: Client, operator: User, bottle: Bottle) -> None:
    assignments.assign(bottle, operator, author="root")
    assert "<form" not in own(otto.get(PAGE).text)
    assert otto.post(f"{PAGE}withdraw", {"seen_version": "2"}).status_code == 403
    assert versions.current(bottle).version == 2


@pytest.mark.parametrize("host", ["nobody.example.com", "<script>alert(1)<", "x\u202ey", "gate.example.com"])
def test_a_route_that_is_not_there_leads_back_to_the_bottle(
    olivia: Client, bottle: Bottle, host: str
) -> None:
    answer = olivia.get(f"/bottles/agent-a/routes/{host}/", follow=True)
    assert answer.redirect_chain == [("/bottles/agent-a/", 302)]
    assert "has no such route" in answer.text
    assert "<script>alert" not in answer.text and "\u202e" not in answer.text
    for verb in ("change", "preview", "withdraw"):
        answer = olivia.post(f"/bottles/agent-a/routes/{host}/{verb}", SAME)
        assert answer.status_code == 400
        assert "<script>alert" not in answer.text and "\u202e" not in answer.text


def test_who_is_signed_out_comes_back_to_the_bottle(client: Client, bottle: Bottle) -> None:
    answer = client.post(f"{PAGE}withdraw", {"seen_version": "2"})
    assert answer.headers["Location"] == "/admin/login/?next=/bottles/agent-a/"
    assert client.get("/bottles/nobody/routes/x/").status_code == 302


# --- withdrawing


def test_one_form_withdraws_the_route(olivia: Client, bottle: Bottle) -> None:
    answer = olivia.post(f"{PAGE}withdraw", {"seen_version": "2"}, follow=True)
    assert "The route of api.example.com is withdrawn, as version 3, and live." in answer.text
    assert load(bottle).table.routes == (OTHER,)
    assert load(bottle).table.gate_hosts == (OTHER.host,)
    event = AuditEvent.objects.latest("seq")
    assert (event.action, event.actor_name) == ("route withdrawn", "olivia")
    assert "route withdrawn: api.example.com" in text_of(answer.text)


def test_a_table_that_changed_since_is_shown_instead(olivia: Client, bottle: Bottle) -> None:
    grow(bottle, Route("third.example.com"))
    answer = olivia.post(f"{PAGE}withdraw", {"seen_version": "2"})
    assert answer.status_code == 409
    assert "Nothing was changed" in answer.text and "version 3 is the newest" in answer.text
    changed = answer.text.split("What changed since you looked:")[1].split("</table>")[0]
    assert "route third.example.com" in changed
    assert 'data-panel="withdraw" open' in answer.text
    assert versions.current(bottle).version == 3


def test_what_somebody_else_withdrew_is_told_on_the_bottles_page(
    olivia: Client, otto: Client, bottle: Bottle
) -> None:
    otto.post(f"{PAGE}withdraw", {"seen_version": "2"})
    for verb in ("withdraw", "change"):
        answer = olivia.post(f"{PAGE}{verb}", {**SAME, "paths": "/a"})
        assert answer.status_code == 409
        assert "version 3 is the newest" in answer.text and "<h1>agent-a</h1>" in answer.text
    assert versions.current(bottle).version == 3


# --- changing


@pytest.mark.parametrize(
    ("fields", "changed"),
    [
        ({"paths": "/a"}, {"path_allowlist": ("/a",)}),
        ({"scheme": "", "token_ref": ""}, {"auth": None}),
        ({"searches_out": "no"}, {"dlp": Dlp(out=False)}),
        ({"pinned": "10.0.0.5\r\n10.0.0.6"}, {"pinned_addresses": ("10.0.0.5", "10.0.0.6")}),
        ({"methods_are": "all"}, {"methods": ()}),
    ],
)
def test_one_form_changes_the_route(
    olivia: Client, bottle: Bottle, fields: dict[str, Any], changed: dict[str, Any]
) -> None:
    answer = olivia.post(f"{PAGE}change", {**SAME, **fields}, follow=True)
    assert "The route of api.example.com is changed, as version 3, and live." in answer.text
    wanted = Route(**({name: getattr(API, name) for name in API.__match_args__} | changed))
    assert load(bottle).table.routes == (wanted, OTHER)


def test_a_lease_runs_on_unless_another_is_chosen(olivia: Client, bottle: Bottle) -> None:
    lease = Lease(timezone.now() + timedelta(days=1), None, timezone.now())
    grow(bottle, Route(HOST, ("/a", "/b"), lease=lease))
    form = {**SAME, "scheme": "", "token_ref": "", "methods_are": "all", "seen_version": "3"}
    olivia.post(f"{PAGE}change", {**form, "paths": "/a", "lease_is": "kept"})
    assert load(bottle).table.get(HOST) == Route(HOST, ("/a",), lease=lease)
    form |= {"paths": "/a", "lease_is": "some", "seen_version": "4"}
    olivia.post(f"{PAGE}change", {**form, "max_uses": "3"})
    assert load(bottle).table.get(HOST).lease.max_uses == 3
    olivia.post(f"{PAGE}change", {**form, "seen_version": "5"})
    assert load(bottle).table.get(HOST).lease is None


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "nothing to change"),
        ({"paths": "relative"}, "path_allowlist[0]"),
        ({"pinned": "<script>alert(1)</script>"}, "must be an IP address"),
        ({"seen_version": "x"}, "Reload the page"),
        ({"token_ref": '"><script>alert(1)</script>'}, "never the secret itself"),
    ],
)
def test_a_form_that_cannot_be_comes_back_with_what_was_typed(
    olivia: Client, bottle: Bottle, fields: dict[str, str], says: str
) -> None:
    answer = olivia.post(f"{PAGE}change", {**SAME, **fields})
    assert answer.status_code == 400
    assert says in answer.text and 'data-panel="change" open' in answer.text
    assert "<script>alert" not in answer.text
    for value in set(fields) & {"pinned", "token_ref"}:
        assert fields[value].replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;") in answer.text
    assert versions.current(bottle).version == 2


def test_a_preview_tells_in_words_and_changes_nothing(olivia: Client, bottle: Bottle) -> None:
    fields = {**SAME, "paths": "/a\r\n/c", "searches_out": "no"}
    part = olivia.post(f"{PAGE}preview", fields, headers={"X-Fragment": "1"}).text
    text = text_of(part)
    assert "no longer reachable: api.example.com under /b" in text
    assert "newly reachable: GET on api.example.com under /c; carries GITHUB_TOKEN" in text
    assert "no longer searched for secrets" in text and "− path: /b" in text
    assert "<h1" not in part
    whole = olivia.post(f"{PAGE}preview", fields).text
    assert "no longer reachable: api.example.com under /b" in text_of(whole)
    assert 'data-panel="change" open' in whole
    bad = olivia.post(f"{PAGE}preview", {**fields, "paths": "x"}, headers={"X-Fragment": "1"}).text
    assert 'class="problem"' in bad
    same = olivia.post(f"{PAGE}preview", SAME, headers={"X-Fragment": "1"}).text
    assert "The effect of your changes is shown here" in same and "problem" not in same
    assert versions.current(bottle).version == 2


def test_quorum_is_said_on_the_page(olivia: Client, bottle: Bottle, settings: Any) -> None:
    settings.SUPERVISE_QUORUM = 2
    answer = olivia.post(f"{PAGE}change", {**SAME, "methods_are": "all"})
    assert answer.status_code == 400 and "needs 2 operators" in answer.text
    assert olivia.post(f"{PAGE}change", {**SAME, "paths": "/a"}).status_code == 302


# --- the same fields where a proposal is modified


def test_a_proposal_is_modified_with_search_and_addresses(operator: User, agent_a: Bottle) -> None:
    proposal = ask(agent_a, HOST)
    page = browser_of(operator).get(f"/proposals/{proposal.pk}/?open=modify").text
    assert '<details class="operators">' in page, "folded where nothing is set"
    assert 'name="lease_is"' not in page
    fields = {
        "host": HOST, "paths_are": "all", "methods_are": "all", "searches_out": "yes", "searches_in": "yes",
        "pinned": "10.0.0.5", "seen_digest": seen(proposal),
    }  # fmt: skip
    browser_of(operator).post(f"/proposals/{proposal.pk}/modify", fields)
    assert Proposal.objects.get(pk=proposal.pk).status == "modified"
    assert load(agent_a).table.routes == (Route(HOST, dlp=Dlp(True, True), pinned_addresses=("10.0.0.5",)),)
