"""Bottles in the admin: what is shown, and who may start and stop them."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from botbottle.models import Bottle
from supervise.bottles import lifecycle
from supervise.errors import NotPermitted
from tests.supervise.console.conftest import browser_of

CHANGELIST = "/admin/botbottle/bottle/"


@pytest.fixture
def runner(operator: User) -> User:
    operator.user_permissions.add(Permission.objects.get(codename="run_bottle"))
    return User.objects.get(pk=operator.pk)


def begin(client: Client, verb: str, *chosen: Bottle) -> str:
    fields = {"action": verb, "_selected_action": [str(bottle.pk) for bottle in chosen]}
    return client.post(CHANGELIST, fields, follow=True).text


def test_the_list_shows_the_state_and_what_is_wrong(olivia: Client, agent_a: Bottle) -> None:
    Bottle.objects.update(state="stopped", problem="no \x1b[31mimage", backend_problem="docker is away")
    for page in (olivia.get(CHANGELIST).text, olivia.get(f"{CHANGELIST}{agent_a.pk}/change/").text):
        assert "stopped" in page.lower()
        assert "no ⟦U+001B⟧[31mimage docker is away" in page


@pytest.mark.parametrize("verb", ["start", "stop"])
def test_who_may_not_run_bottles_has_no_such_action(olivia: Client, agent_a: Bottle, verb: str) -> None:
    assert f'value="{verb}"' not in olivia.get(CHANGELIST).text
    begin(olivia, verb, agent_a)
    with pytest.raises(NotPermitted, match="run_bottle"):
        lifecycle.begin(verb, "agent-a", actor=User.objects.get(username="olivia"))


@pytest.mark.parametrize("verb", ["start", "stop"])
def test_who_may_run_bottles_has_it_and_it_needs_a_post_with_the_token(
    runner: User, agent_a: Bottle, verb: str
) -> None:
    client = browser_of(runner, enforce_csrf_checks=True)
    assert f'value="{verb}"' in client.get(CHANGELIST).text
    answer = client.post(CHANGELIST, {"action": verb, "_selected_action": [str(agent_a.pk)]})
    assert answer.status_code == 403


def test_a_bottle_that_was_deleted_meanwhile_is_refused_in_words(runner: User, agent_a: Bottle) -> None:
    Bottle.objects.update(state="deleted")
    page = begin(browser_of(runner), "start", agent_a)
    assert "There is no bottle" in page
