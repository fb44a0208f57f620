"""A database at fault: operators get a page, and programs JSON, with the reason."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db import DatabaseError
from django.test import Client

from botbottle.models import Bottle
from botbottle.web.websockets import ClosedOnFault
from supervise.access import api_keys
from supervise.models import Proposal
from tests.support.database_fault import away, failing, full, locked, lost
from tests.support.proposals import ask, seen

pytestmark = pytest.mark.django_db


@pytest.fixture
def browser(olivia: Client) -> Client:
    olivia.raise_request_exception = False
    return olivia


@pytest.fixture
def script(operator: User) -> Client:
    return Client(
        headers={"Authorization": f"Bearer {api_keys.create(operator, 'script')}"},
        raise_request_exception=False,
    )


@pytest.mark.parametrize("path", ["/", "/history/", "/bottles/", "/admin/", "/queue/state"])
def test_every_page_says_what_is_wrong_without_the_database(browser: Client, path: str) -> None:
    with failing(away):
        page = browser.get(path)
    assert (page.status_code, page.headers["Retry-After"]) == (503, "5")
    assert "<h1>The database cannot be reached.</h1>" in page.text
    assert "Nothing was changed." in page.text
    assert '<meta http-equiv="refresh" content="5">' in page.text
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]


def test_a_form_that_changed_nothing_says_so(browser: Client, agent_a: Bottle) -> None:
    proposal = ask(agent_a)
    with failing(full, at="INSERT"):
        page = browser.post(
            f"/proposals/{proposal.pk}/reject", {"seen_digest": seen(proposal), "note": "No."}
        )
    assert page.status_code == 503
    assert "The disk of the database is full." in page.text
    assert "Nothing was changed." in page.text
    assert "http-equiv" not in page.text
    assert Proposal.objects.get(pk=proposal.pk).status == "pending"


def test_signing_in_says_what_is_wrong(operator: User) -> None:
    with failing(full, at="INSERT"):
        page = Client(raise_request_exception=False).post(
            "/admin/login/", {"username": "olivia", "password": "correct-horse-battery"}
        )
    assert page.status_code == 503
    assert "The disk of the database is full." in page.text


def test_a_session_that_cannot_be_prolonged_is_not_called_a_bad_request(browser: Client) -> None:
    stored = Session.objects.get()
    data = stored.get_decoded() | {"seen": 0}
    Session.objects.save(stored.session_key, data, stored.expire_date)
    with failing(full, at='UPDATE "django_session"'):
        page = browser.get("/history/")
    assert page.status_code in (302, 503)
    assert page.status_code == 302 or "The disk of the database is full." in page.text


def test_the_api_answers_json(script: Client) -> None:
    with failing(away):
        answers = [script.get("/api/proposals/"), script.get("/api/schema/"), script.get("/api/bottles/")]
    for answer in answers:
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
        assert answer.json() == {
            "error": "unavailable",
            "message": "The database cannot be reached. Nothing was changed. Try again in 5 s.",
        }


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("error", "at", "outcome"),
    [
        (locked, "INSERT", "Nothing was changed."),
        (lost, 'INSERT INTO "supervise_auditevent"', "It is not known whether your change was made"),
    ],
)
def test_a_decision_by_the_api_says_what_became_of_it(
    script: Client, agent_a: Bottle, error: Callable[[], DatabaseError], at: str, outcome: str
) -> None:
    proposal = ask(agent_a)
    body = {"seen_digest": seen(proposal), "note": "No."}
    with failing(error, at=at):
        answer = script.post(f"/api/proposals/{proposal.pk}/reject/", body, "application/json")
    assert answer.status_code == 503
    assert outcome in answer.json()["message"]
    assert Proposal.objects.get(pk=proposal.pk).status == "pending"


def test_an_error_of_the_program_stays_a_500(browser: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr("supervise.console.views.page_of", broken)
    assert browser.get("/").status_code == 500


def test_a_fault_is_one_record_in_the_log(
    browser: Client, script: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with failing(away):
        browser.get("/")
        script.get("/api/proposals/")
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [(record.name, bool(record.exc_info)) for record in errors] == [
        ("botbottle.web.error_pages", True),
        ("supervise.api.views", True),
    ]


async def test_a_websocket_closes_with_a_code_of_its_own() -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        raise scope["error"]

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await ClosedOnFault(application)({"error": away()}, None, send)
    assert sent == [{"type": "websocket.close", "code": 4503}]
    with pytest.raises(ValueError, match="a bug"):
        await ClosedOnFault(application)({"error": ValueError("a bug")}, None, send)
