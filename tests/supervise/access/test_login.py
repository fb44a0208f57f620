"""Signing in: how often it may be tried, from where, and when a session ends."""

from __future__ import annotations

import time
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings as django_settings
from django.contrib.auth import authenticate
from django.contrib.auth.hashers import check_password, make_password
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.http import HttpRequest
from django.test import Client, RequestFactory
from django.utils import timezone

from supervise.access import login
from supervise.access.login import PER_ACCOUNT, PER_ADDRESS, address_of
from supervise.models import AuditEvent, LoginFailure
from tests.supervise.console.conftest import browser_of
from tests.support.threads import together

pytestmark = pytest.mark.django_db
RIGHT, WRONG = "correct-horse-battery", "wrong-horse-battery"
HOME, ELSEWHERE = "192.0.2.1", "198.51.100.7"


def try_to_sign_in(name: str, password: str, *, address: str = HOME, **headers: str) -> Any:
    return Client(REMOTE_ADDR=address, headers=headers).post(
        "/admin/login/", {"username": name, "password": password, "next": "/"}
    )


def gets_in(*arguments: str, **more: str) -> bool:
    return bool(try_to_sign_in(*arguments, **more).status_code == 302)


def fail(times: int, name: str = "olivia", **more: str) -> None:
    for _ in range(times):
        assert not gets_in(name, WRONG, **more)


def let_time_pass(span: timedelta) -> None:
    for row in LoginFailure.objects.all():
        LoginFailure.objects.filter(pk=row.pk).update(at=row.at - span)


# --- how often


def test_after_some_wrong_passwords_the_right_one_is_refused_too(operator: User) -> None:
    fail(PER_ACCOUNT)
    assert not gets_in("olivia", RIGHT)
    let_time_pass(login.WINDOW)
    assert gets_in("olivia", RIGHT)


def test_the_answer_is_the_same_whatever_was_wrong(operator: User, viewer: User) -> None:
    User.objects.create_user("nostaff", password=RIGHT)
    User.objects.create_user("inactive", password=RIGHT, is_staff=True, is_active=False)
    fail(PER_ACCOUNT)

    def said(name: str, password: str) -> tuple[int, str]:
        answer = try_to_sign_in(name, password)
        shown = answer.text.split('<form action="', 1)[0]  # up to the form, which holds a fresh CSRF token
        assert "do not sign in here" in shown
        return answer.status_code, shown

    answers = {
        said(*attempt)
        for attempt in [
            ("olivia", RIGHT), ("olivia", WRONG), ("vera", WRONG), ("nobody", WRONG), ("nostaff", RIGHT),
            ("inactive", RIGHT),
        ]
    }  # fmt: skip
    assert len(answers) == 1


def test_nobody_can_lock_an_account_from_elsewhere(operator: User) -> None:
    fail(PER_ACCOUNT, address=ELSEWHERE)
    assert not gets_in("olivia", RIGHT, address=ELSEWHERE)
    assert gets_in("olivia", RIGHT, address=HOME)


def test_another_account_at_the_same_address_is_not_concerned(operator: User, viewer: User) -> None:
    fail(PER_ACCOUNT)
    assert gets_in("vera", RIGHT)


def test_an_address_that_tries_many_names_is_refused(operator: User) -> None:
    for number in range(PER_ADDRESS):
        assert not gets_in(f"name-{number}", WRONG)
    assert not gets_in("olivia", RIGHT)
    assert gets_in("olivia", RIGHT, address=ELSEWHERE)


def test_a_refused_attempt_makes_the_wait_no_longer(operator: User) -> None:
    fail(PER_ACCOUNT)
    let_time_pass(login.WINDOW - timedelta(minutes=1))
    fail(20)
    let_time_pass(timedelta(minutes=1))
    assert gets_in("olivia", RIGHT)


def test_a_right_password_begins_the_count_anew(operator: User) -> None:
    for _ in range(3):
        fail(PER_ACCOUNT - 1)
        assert gets_in("olivia", RIGHT)
    assert not LoginFailure.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_many_attempts_at_one_moment_are_no_more_than_the_limit(
    operator: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []
    real = User.check_password

    def check(user: User, password: str) -> bool:
        checked.append(password)
        return real(user, password)

    monkeypatch.setattr(User, "check_password", check)
    request = RequestFactory().post("/", REMOTE_ADDR=HOME)
    attempt = partial(authenticate, request, username="olivia", password=WRONG)
    assert together([attempt] * 20) == [None] * 20
    assert 1 <= len(checked) <= PER_ACCOUNT


def test_names_that_are_nobodys_are_not_kept(operator: User) -> None:
    fail(1, "my-password-by-mistake")
    fail(1, "my-password-by-mistake")
    fail(1)
    accounts = list(LoginFailure.objects.order_by("pk").values_list("account", flat=True))
    assert accounts[2] == "olivia"
    assert accounts[0] == accounts[1] and "password" not in accounts[0]


@pytest.mark.parametrize("name", ["", "x" * 10_000, "\x00", "olivia\u202e", "é" * 200])
def test_odd_names_are_only_wrong(operator: User, name: str) -> None:
    assert try_to_sign_in(name, WRONG).status_code == 200


def test_operators_see_it_and_an_administrator_can_end_it(operator: User) -> None:
    root = browser_of(User.objects.create_superuser("root", password=RIGHT))
    fail(PER_ACCOUNT)
    page = root.get("/admin/supervise/loginfailure/").text
    assert "olivia" in page and HOME in page
    event = AuditEvent.objects.get(action="sign-in refused for a while")
    assert event.details == {"account": "olivia", "address": HOME}
    fail(3)
    assert AuditEvent.objects.filter(action="sign-in refused for a while").count() == 1
    chosen = [row.pk for row in LoginFailure.objects.all()]
    root.post(
        "/admin/supervise/loginfailure/",
        {"action": "delete_selected", "_selected_action": chosen, "post": "yes"},
    )
    assert gets_in("olivia", RIGHT)
    assert root.get("/admin/supervise/loginfailure/add/").status_code == 403


def test_old_failures_are_forgotten(operator: User) -> None:
    fail(1)
    let_time_pass(login.MEMORY_OF_FAILURES + timedelta(minutes=1))
    fail(1)
    assert LoginFailure.objects.count() == 1


# --- from where


@pytest.mark.parametrize(
    ("seen", "forwarded", "behind_proxy", "address"),
    [
        ("192.0.2.1", "", False, "192.0.2.1"),
        ("192.0.2.1", "203.0.113.9", False, "192.0.2.1"),  # anybody can send that header
        ("127.0.0.1", "203.0.113.9", True, "203.0.113.9"),
        ("127.0.0.1", "6.6.6.6, 203.0.113.9", True, "203.0.113.9"),  # only the last one is our proxy's word
        ("127.0.0.1", "", True, "127.0.0.1"),
        ("127.0.0.1", "junk", True, "unknown"),
        ("2001:db8:1:2:3:4:5:6", "", False, "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "", False, "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.1", "", False, "192.0.2.1"),
        ("", "", False, "unknown"),
    ],
)
def test_whom_an_attempt_is_counted_for(
    settings: Any, seen: str, forwarded: str, behind_proxy: bool, address: str
) -> None:
    settings.SECURE_COOKIES = behind_proxy
    request = HttpRequest()
    request.META = {"REMOTE_ADDR": seen, "HTTP_X_FORWARDED_FOR": forwarded}
    assert address_of(request) == address


# --- how long


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [time.time()]
    monkeypatch.setattr("supervise.access.login.time.time", lambda: now[0])
    return now


def signed_in(client: Client) -> bool:
    return bool(client.get("/history/").status_code == 200)


def seconds_left() -> float:
    return (Session.objects.get().expire_date - timezone.now()).total_seconds()


def test_a_session_is_as_long_as_nobody_may_be_away(operator: User, settings: Any) -> None:
    settings.CONSOLE_IDLE_SECONDS = 600
    client = browser_of(operator)
    assert signed_in(client)
    assert 590 < seconds_left() <= 600
    Session.objects.update(expire_date=timezone.now() - timedelta(seconds=1))
    assert not signed_in(client)


def test_using_it_prolongs_it_and_what_a_page_fetches_by_itself_does_not(
    operator: User, settings: Any, clock: list[float]
) -> None:
    settings.CONSOLE_IDLE_SECONDS = 600
    client = browser_of(operator)
    assert signed_in(client)
    Session.objects.update(expire_date=timezone.now() + timedelta(seconds=100))
    clock[0] += 500
    client.get("/queue/state", headers={"X-Background": "1"})
    assert seconds_left() <= 100
    client.get("/history/", headers={"Sec-Fetch-Dest": "empty"})
    assert seconds_left() > 590


def test_a_session_is_written_at_most_once_a_minute(
    operator: User, clock: list[float], django_assert_num_queries: Any
) -> None:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    client = browser_of(operator)
    client.get("/history/")
    for later, writes in ((30, False), (61, True)):
        clock[0] += later
        with CaptureQueriesContext(connection) as captured:
            client.get("/history/")
        assert any('UPDATE "django_session"' in query["sql"] for query in captured) is writes


def test_after_a_working_day_it_is_over_however_busy(
    operator: User, settings: Any, clock: list[float]
) -> None:
    settings.CONSOLE_IDLE_SECONDS, settings.CONSOLE_SESSION_SECONDS = 600, 2000
    client = browser_of(operator)
    for _ in range(19):
        assert signed_in(client)
        clock[0] += 100
    assert signed_in(client)
    assert seconds_left() <= 101, "in the database too, so that open websockets end with it"
    clock[0] += 101
    assert not signed_in(client)
    client.force_login(operator)
    assert signed_in(client)


def test_signing_in_anew_begins_a_new_day(operator: User, settings: Any, clock: list[float]) -> None:
    settings.CONSOLE_SESSION_SECONDS = 2000
    client = Client()
    for _ in range(3):
        client.post("/admin/login/", {"username": "olivia", "password": RIGHT, "next": "/"})
        clock[0] += 1500
        assert signed_in(client)


@pytest.mark.django_db(transaction=True)
async def test_the_end_of_a_session_closes_its_websocket(
    operator: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.supervise.console.test_websocket import FORBIDDEN, open_socket

    monkeypatch.setattr("supervise.console.websockets.RECHECK_SECONDS", 0.01)
    client = await sync_to_async(browser_of)(operator)
    async with open_socket(client) as socket:
        over = {"expire_date": timezone.now() - timedelta(seconds=1)}
        await sync_to_async(Session.objects.update)(**over)
        assert (await socket.receive_output())["code"] == FORBIDDEN


def test_a_withdrawn_right_is_looked_for_within_a_minute() -> None:
    from supervise.console import websockets

    assert websockets.RECHECK_SECONDS < 60


def test_cookies_are_for_this_site_and_not_for_scripts(operator: User) -> None:
    answer = try_to_sign_in("olivia", RIGHT)
    cookie = answer.cookies[django_settings.SESSION_COOKIE_NAME]
    assert (cookie["samesite"], cookie["httponly"]) == ("Lax", True)
    assert 0 < cookie["max-age"] <= 2 * 3600


def test_passwords_are_hashed_with_memory_and_older_hashes_still_hold(settings: Any) -> None:
    from botbottle import settings as real

    settings.PASSWORD_HASHERS = real.PASSWORD_HASHERS
    older = make_password("x", hasher="pbkdf2_sha256")
    assert make_password("x").startswith("scrypt$")
    assert check_password("x", older)
