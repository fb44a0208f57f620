"""Roles as groups, operators assigned to bottles, and who may make whom what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import Group, Permission, User
from django.test import Client

from botbottle.models import Bottle
from supervise import audit_check
from supervise.access import assignments, permissions
from supervise.bottles import lifecycle
from supervise.errors import NotPermitted
from supervise.migrations import _roles as roles
from supervise.models import Assignment, AuditEvent, Decision, Proposal
from supervise.proposals import decisions
from tests.supervise.console.conftest import browser_of
from tests.support.proposals import ask, seen

pytestmark = pytest.mark.django_db
PASSWORD = "correct-horse-battery"


def user_in(role: str, name: str) -> User:
    user = User.objects.create_user(name, password=PASSWORD, is_staff=True)
    user.groups.add(Group.objects.get(name=role))
    return User.objects.get(pk=user.pk)


@pytest.fixture
def ada(db: None) -> User:
    return user_in(roles.ADMIN, "ada")


# --- the groups


@pytest.mark.parametrize(
    ("role", "may", "may_not"),
    [
        (
            roles.VIEWER,
            ["supervise.view_proposal", "supervise.view_auditevent", "egress.view_trafficrecord"],
            ["supervise.decide_proposal", "botbottle.run_bottle", "supervise.view_webhook", "auth.view_user"],
        ),
        (
            roles.OPERATOR,
            ["supervise.view_proposal", "supervise.decide_proposal", "botbottle.run_bottle"],
            ["supervise.view_webhook", "egress.change_secret", "supervise.add_assignment", "auth.add_user"],
        ),
        (
            roles.ADMIN,
            [
                "supervise.decide_proposal", "botbottle.run_bottle", "supervise.add_webhook",
                "supervise.view_delivery", "egress.change_secret", "supervise.delete_apikey",
                "supervise.add_assignment", "supervise.delete_loginfailure", "auth.change_user",
            ],
            ["supervise.change_proposal", "supervise.delete_auditevent", "auth.change_group"],
        ),
    ],
)  # fmt: skip
def test_migrations_made_the_role(role: str, may: list[str], may_not: list[str]) -> None:
    user = user_in(role, "nina")
    assert [name for name in may if not user.has_perm(name)] == []
    assert [name for name in may_not if user.has_perm(name)] == []


def test_the_permissions_are_the_ones_django_makes() -> None:
    """Made early, they must be found by Django afterwards, not doubled."""
    for role in roles.ROLES:
        for app, model, codename in roles.permissions_of(role):
            known = apps.get_model(app, model)._meta
            names = [f"{verb}_{model}" for verb in known.default_permissions]
            names += [name for name, _ in known.permissions]
            assert codename in names
            assert Permission.objects.filter(content_type__app_label=app, codename=codename).count() == 1
    name = Permission.objects.get(codename="view_routetableversion").name
    assert name == "Can view route table version"


def test_granting_again_takes_nothing_away_and_adds_nothing_twice() -> None:
    group = Group.objects.get(name=roles.VIEWER)
    group.permissions.add(Permission.objects.get(codename="decide_proposal"))
    before = set(group.permissions.values_list("codename", flat=True))
    roles.grant(apps)
    assert set(group.permissions.values_list("codename", flat=True)) == before


# --- assignment


def test_a_bottle_without_assigned_operators_is_every_operators(operator: User, agent_a: Bottle) -> None:
    assert permissions.may_decide_for(operator, agent_a)


def reject(proposal: Proposal, actor: User) -> Any:
    return decisions.reject(proposal.pk, actor=actor, seen_digest=seen(proposal), note="no")


def approve(proposal: Proposal, actor: User) -> Any:
    return decisions.approve(proposal.pk, actor=actor, seen_digest=seen(proposal))


def modify(proposal: Proposal, actor: User) -> Any:
    payload = {**proposal.payload, "methods": ["GET"]}
    return decisions.modify(proposal.pk, actor=actor, seen_digest=seen(proposal), payload=payload)


@pytest.mark.parametrize("decide", [approve, modify, reject])
def test_others_do_not_decide_for_an_assigned_bottle(
    operator: User, second_operator: User, agent_a: Bottle, agent_b: Bottle, decide: Callable[..., Any]
) -> None:
    assignments.assign(agent_a, operator, author="root")
    proposal = ask(agent_a)
    with pytest.raises(NotPermitted, match="operators of its own"):
        decide(proposal, second_operator)
    assert Proposal.objects.get().is_pending
    assert decide(proposal, operator).actor == operator
    assert decide(ask(agent_b), second_operator).actor == second_operator, "the other bottle is everybody's"


@pytest.mark.parametrize("verb", ["start", "stop"])
def test_others_do_not_start_or_stop_an_assigned_bottle(
    operator: User, agent_a: Bottle, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle.subprocess, "Popen", lambda *_, **__: pytest.fail("it was begun"))
    assignments.assign(agent_a, operator, author="root")
    with pytest.raises(NotPermitted, match="assigned to other operators"):
        lifecycle.begin(verb, "agent-a", actor=user_in(roles.OPERATOR, "otto"))


def test_who_may_assign_may_decide(operator: User, ada: User, agent_a: Bottle) -> None:
    assignments.assign(agent_a, operator, author="root")
    assert approve(ask(agent_a), ada).status == "approved"


def test_to_be_assigned_gives_no_right_to_decide(viewer: User, agent_a: Bottle) -> None:
    assignments.assign(agent_a, viewer, author="root")
    assert not permissions.may_decide_for(viewer, agent_a)


def test_a_yes_given_before_an_assignment_does_not_count_after_it(
    operator: User, second_operator: User, ada: User, agent_a: Bottle, settings: Any
) -> None:
    settings.SUPERVISE_QUORUM = 2
    proposal = ask(agent_a, "*.example.com")
    approve(proposal, second_operator)
    assignments.assign(agent_a, operator, author="root")
    approve(proposal, operator)
    assert not Decision.objects.exists()
    approve(proposal, ada)
    assert Decision.objects.get().status == "approved"


def test_the_bottles_of_others_take_one_query(
    operator: User, second_operator: User, agent_a: Bottle, agent_b: Bottle, django_assert_num_queries: Any
) -> None:
    assignments.assign(agent_a, operator, author="root")
    assignments.assign(agent_b, operator, author="root")
    assignments.assign(agent_b, second_operator, author="root")
    second_operator.get_all_permissions()
    with django_assert_num_queries(1):
        assert permissions.bottles_assigned_to_others(second_operator) == {agent_a.pk}
    assert permissions.bottles_assigned_to_others(operator) == set()


def test_releasing_the_last_one_gives_the_bottle_back(operator: User, viewer: User, agent_a: Bottle) -> None:
    made = assignments.assign(agent_a, viewer, author="root")
    assert assignments.assign(agent_a, viewer, author="root") == made, "twice is once"
    assert not permissions.may_decide_for(operator, agent_a)
    assignments.release(made, author="root")
    assert permissions.may_decide_for(operator, agent_a)
    told = AuditEvent.objects.filter(action__startswith="operator ").order_by("seq")
    assert [(event.action, event.bottle_slug, event.details) for event in told] == [
        ("operator assigned", "agent-a", {"operator": "vera"}),
        ("operator released", "agent-a", {"operator": "vera"}),
    ]
    assert audit_check.verify()[1] is None


def test_assigning_in_the_admin(ada: User, operator: User, agent_a: Bottle) -> None:
    browser = browser_of(ada)
    browser.post("/admin/supervise/assignment/add/", {"bottle": agent_a.pk, "operator": operator.pk})
    made = Assignment.objects.get()
    assert (made.bottle, made.operator, made.assigned_by) == (agent_a, operator, "ada")
    path = f"/admin/supervise/assignment/{made.pk}/"
    assert browser.post(f"{path}change/", {"bottle": agent_a.pk}).status_code == 403
    browser.post(f"{path}delete/", {"post": "yes"})
    assert not Assignment.objects.exists()
    assert AuditEvent.objects.filter(actor_name="ada").count() == 2
    assert browser_of(operator).get("/admin/supervise/assignment/add/").status_code == 403


def test_an_assigned_operator_cannot_be_deleted_from_under_the_bottle(
    ada: User, operator: User, agent_a: Bottle
) -> None:
    assignments.assign(agent_a, operator, author="root")
    browser_of(ada).post(f"/admin/auth/user/{operator.pk}/delete/", {"post": "yes"})
    assert User.objects.filter(pk=operator.pk).exists()


# --- users


def form_of(user: User, **changes: Any) -> dict[str, Any]:
    return {
        "username": user.username,
        "is_active": "on",
        "is_staff": "on",
        "date_joined_0": "2030-01-01",
        "date_joined_1": "00:00:00",
        **changes,
    }


def test_an_admin_gives_roles_and_that_is_recorded(ada: User, viewer: User) -> None:
    group = Group.objects.get(name=roles.OPERATOR)
    answer = browser_of(ada).post(f"/admin/auth/user/{viewer.pk}/change/", form_of(viewer, groups=[group.pk]))
    assert answer.status_code == 302
    assert User.objects.get(pk=viewer.pk).has_perm("supervise.decide_proposal")
    event = AuditEvent.objects.latest("seq")
    assert (event.action, event.actor_name, event.details["groups"]) == ("user changed", "ada", ["operator"])


@pytest.mark.parametrize("who", ["ada", "vera"])
def test_an_admin_makes_nobody_a_superuser(ada: User, viewer: User, who: str) -> None:
    user = User.objects.get(username=who)
    every = [permission.pk for permission in Permission.objects.all()]
    changes = {"is_superuser": "on", "user_permissions": every}
    before = set(user.user_permissions.values_list("pk", flat=True))
    browser_of(ada).post(f"/admin/auth/user/{user.pk}/change/", form_of(user, **changes))
    user = User.objects.get(pk=user.pk)
    assert not user.is_superuser
    assert set(user.user_permissions.values_list("pk", flat=True)) == before


@pytest.mark.parametrize("page", ["change/", "delete/", "password/"])
def test_an_admin_does_not_touch_a_superuser(ada: User, page: str) -> None:
    root = User.objects.create_superuser("root", password=PASSWORD)
    more = {"post": "yes", "password1": "another-horse-battery", "password2": "another-horse-battery"}
    answer = browser_of(ada).post(f"/admin/auth/user/{root.pk}/{page}", form_of(root, **more))
    assert answer.status_code in {302, 403, 404}
    kept = User.objects.get(pk=root.pk)
    assert kept.is_superuser and kept.check_password(PASSWORD)


def test_an_admin_does_not_delete_superusers_in_bulk(ada: User, viewer: User) -> None:
    root = User.objects.create_superuser("root", password=PASSWORD)
    chosen = {"action": "delete_selected", "_selected_action": [root.pk, viewer.pk], "post": "yes"}
    browser_of(ada).post("/admin/auth/user/", chosen)
    assert set(User.objects.values_list("username", flat=True)) == {"ada", "root"}
    assert AuditEvent.objects.latest("seq").details["user"] == "vera"


def test_a_superuser_does_all_of_it(root_browser: Client, viewer: User) -> None:
    root_browser.post(f"/admin/auth/user/{viewer.pk}/change/", form_of(viewer, is_superuser="on"))
    assert User.objects.get(pk=viewer.pk).is_superuser


@pytest.fixture
def root_browser(db: None) -> Client:
    return browser_of(User.objects.create_superuser("root", password=PASSWORD))
