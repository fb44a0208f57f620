"""Calls of managed tools that an operator decides: one call per approval, hostile arguments on the card."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.contrib.auth.models import Permission, User
from django.utils import timezone

from botbottle.models import Bottle
from supervise.bottles import mcp_servers
from supervise.bottles import records as bottles
from supervise.errors import BadAsk
from supervise.kinds import mcp_tool
from supervise.mcp.session_context import facts as context
from supervise.models import AuditEvent, Decision, ManagedServer, Proposal
from supervise.proposals import decisions, queries
from supervise.proposals.risk import Level
from tests.supervise.console.conftest import browser_of
from tests.support.proposals import HOSTILE, seen

pytestmark = pytest.mark.django_db(transaction=True)
MANIFEST = "mcp_servers: {notes: {command: notes, env: {TOKEN: x}, tools: {delete: ask}}}\n"


@pytest.fixture
def bottle(db: None) -> Bottle:
    made = bottles.create("noted", author="tests").bottle
    Bottle.objects.filter(pk=made.pk).update(manifest=MANIFEST)
    return Bottle.objects.get(pk=made.pk)


def asked(bottle: Bottle, **arguments: object) -> Proposal:
    return queries.get_proposal(mcp_tool.ask(bottle, "notes", "delete", arguments))


def approve(proposal: Proposal, operator: User) -> None:
    decisions.approve(proposal.pk, actor=operator, seen_digest=seen(proposal))


def test_an_approval_is_good_for_one_call(bottle: Bottle, operator: User) -> None:
    proposal = asked(bottle, name="a")
    assert mcp_tool.claim(proposal.pk) is None, "nobody said yes"
    approve(proposal, operator)
    for _ in range(2):  # looking uses nothing up
        assert "make exactly the same call again" in queries.outcome(proposal.pk).explanation
        assert mcp_tool.unused(bottle, "notes", "delete", {"name": "a"}) == str(proposal.pk)
    shown = {"server": "notes", "tool": "delete", "arguments": {"name": "a"}}
    assert mcp_tool.claim(proposal.pk) == shown
    assert mcp_tool.claim(proposal.pk) is None
    assert mcp_tool.unused(bottle, "notes", "delete", {"name": "a"}) is None
    assert "the call was made" in queries.outcome(proposal.pk).explanation
    assert asked(bottle, name="a").pk != proposal.pk


def test_the_call_is_in_the_record_once(bottle: Bottle, operator: User) -> None:
    proposal = asked(bottle, name="a")
    approve(proposal, operator)
    for _ in range(2):
        mcp_tool.claim(proposal.pk)
    (row,) = AuditEvent.objects.filter(action="call made")
    assert (row.proposal_id, row.actor_name, row.bottle_slug) == (proposal.pk, "bottle noted", "noted")
    assert row.details == {"server": "notes", "tool": "delete"}


def test_what_was_shown_is_called_not_what_was_sent(bottle: Bottle, operator: User) -> None:
    proposal = asked(bottle, name="a\x00\ud800")
    approve(proposal, operator)
    shown = mcp_tool.claim(proposal.pk)
    assert shown is not None and shown["arguments"] == {"name": "a␀\ufffd"}


@pytest.mark.parametrize("other", [{"name": "b"}, {}, {"name": "a", "all": True}])
def test_an_approval_is_for_these_arguments_alone(bottle: Bottle, operator: User, other: dict) -> None:
    approve(asked(bottle, name="a"), operator)
    assert mcp_tool.unused(bottle, "notes", "delete", other) is None


def test_an_approval_does_not_last(bottle: Bottle, operator: User) -> None:
    proposal = asked(bottle, name="a")
    approve(proposal, operator)
    Decision.objects.update(created_at=timezone.now() - timedelta(hours=2))
    assert mcp_tool.unused(bottle, "notes", "delete", {"name": "a"}) is None
    assert mcp_tool.claim(proposal.pk) is None


def test_another_bottle_has_no_part_in_it(bottle: Bottle, agent_b: Bottle, operator: User) -> None:
    approve(asked(bottle, name="a"), operator)
    assert mcp_tool.unused(agent_b, "notes", "delete", {"name": "a"}) is None


def test_equal_calls_share_a_card_and_it_can_only_be_approved_or_rejected(
    bottle: Bottle, operator: User
) -> None:
    proposal = asked(bottle, name="a")
    assert asked(bottle, name="a").pk == proposal.pk
    with pytest.raises(BadAsk, match="nothing to modify"):
        decisions.modify(proposal.pk, actor=operator, seen_digest=seen(proposal), payload=proposal.payload)
    decisions.reject(proposal.pk, actor=operator, seen_digest=seen(proposal), note="no")
    assert not mcp_tool.claim(proposal.pk)


def test_the_card_shows_the_arguments_as_hostile_text(bottle: Bottle, operator: User) -> None:
    proposal = asked(bottle, name=HOSTILE)
    review = queries.review_of(proposal)
    assert review.risk.level is Level.MEDIUM and "delete of the server notes" in review.effects[0]
    browser = browser_of(operator)
    for page in ("/", f"/proposals/{proposal.pk}/"):
        text = browser.get(page, follow=True).text
        assert "delete of notes" in text
        assert "<script>alert(1)" not in text and "\u202e" not in text and "\x1b" not in text
    detail = browser.get(f"/proposals/{proposal.pk}/").text
    assert "Arguments" in detail and "⟦U+202E⟧" in detail
    assert browser.get(f"/api/proposals/{proposal.pk}/").status_code == 200
    told = context.session_context(bottle, context.parse_ask({"depth": "deep"}))
    assert "an MCP tool" in json.dumps(told)


def test_the_admin_shows_names_of_variables_and_stderr_as_hostile_text(
    bottle: Bottle, operator: User
) -> None:
    mcp_servers.sync(bottle)
    ManagedServer.objects.update(stderr=f"boom {HOSTILE}".replace("\x00", "").replace("\ud800", ""))
    row = ManagedServer.objects.get()
    assert (row.condition, row.env_names) == ("stopped", ["TOKEN"])
    for codename in ("view_managedserver",):
        operator.user_permissions.add(Permission.objects.get(codename=codename))
    browser = browser_of(User.objects.get(pk=operator.pk))
    page = browser.get(f"/admin/supervise/managedserver/{row.pk}/change/").text
    assert "TOKEN" in page and "boom" in page and "⟦U+202E⟧" in page
    assert "<script>alert(1)" not in page


def test_who_may_not_run_bottles_stops_no_server(bottle: Bottle, operator: User) -> None:
    mcp_servers.sync(bottle)
    with pytest.raises(mcp_servers.NotPermitted):
        mcp_servers.act_for("stop", ManagedServer.objects.get(), actor=operator)
    with pytest.raises(mcp_servers.NoSuchServer):
        mcp_servers.act("stop", "noted", "other", author="tests")


def test_rows_of_servers_that_the_manifest_no_longer_names_go(bottle: Bottle) -> None:
    mcp_servers.sync(bottle)
    bottle.manifest = "backend: local\n"
    mcp_servers.sync(bottle)
    assert not ManagedServer.objects.exists()
