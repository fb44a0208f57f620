"""What must hold for every address there is: who changes something, how, and that viewers never do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.apps import apps
from django.conf import settings
from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import URLPattern, URLResolver, get_resolver

from botbottle.asgi import websocket_application
from botbottle.models import Bottle
from supervise.access import api_keys
from supervise.migrations import _roles as roles
from supervise.models import Proposal, StandingRefusal
from supervise.proposals import decisions, drafts
from tests.supervise.console.conftest import browser_of
from tests.support.proposals import ask, seen
from tests.support.sockets import Socket

NOBODY = "00000000-0000-0000-0000-000000000000"
OURS = ("botbottle", "egress", "supervise")
WRITES = re.compile(
    r'(INSERT INTO|UPDATE|DELETE FROM) "(?!supervise_loginfailure)(botbottle|egress|supervise)_'
)
HERE = "http://127.0.0.1:8000"


def routes(part: str) -> list[str]:
    """All addresses of the console ("" ), the API ("api/") or the admin ("admin/")."""
    return sorted(
        route
        for route in _every(get_resolver().url_patterns, "")
        if (route.startswith(part) if part else not route.startswith(("api/", "admin/")))
    )


def _every(patterns: list[URLPattern | URLResolver], prefix: str) -> list[str]:
    found = []
    for pattern in patterns:
        route = prefix + str(pattern.pattern)
        found += _every(pattern.url_patterns, route) if isinstance(pattern, URLResolver) else [route]
    return found


def filled(route: str, **values: object) -> str:
    """The address of one thing. What is not named becomes something that does not exist."""
    route = re.sub(r"\(\?P<\w+>[^)]*\)", "x", route)  # regular expressions of the admin
    stand_ins = {"uuid": NOBODY, "int": "1", "path": "1"}

    def value(match: re.Match[str]) -> str:
        return str(values.get(match[2], stand_ins.get(match[1] or "str", "x")))

    return "/" + re.sub(r"<(?:(\w+):)?(\w+)>", value, route).replace("^", "").replace("$", "").replace(
        "\\Z", ""
    ).replace("\\.", ".")


EVERY_ROUTE = routes("") + routes("api/") + routes("admin/")
# Sign-in, sign-out and what they need: before anybody is known, there is nothing to guard.
OPEN = {"admin/login/", "admin/logout/"}


@pytest.fixture
def strict_root(db: None) -> Client:
    """A superuser's browser that does not know the CSRF token."""
    return browser_of(
        User.objects.create_superuser("root", password="correct-horse-battery"), enforce_csrf_checks=True
    )


def is_form(client: Client, route: str) -> bool:
    return client.get(filled(route)).status_code == 405


# --- pages and forms


def test_an_address_either_shows_or_changes(strict_root: Client) -> None:
    """Reading never changes anything, and what changes something takes nothing but POST."""
    root = User.objects.get(username="root")
    key, browser = {"Authorization": f"Bearer {api_keys.create(root, 'script')}"}, browser_of(root)
    for route in routes("") + routes("api/"):
        if is_form(strict_root, route):
            for method in ("head", "put", "patch", "delete"):
                answer = getattr(strict_root, method)(filled(route))
                assert answer.status_code in {403, 405}, (route, method)
        elif route.startswith("api/"):
            assert Client().post(filled(route), headers=key).status_code == 405, route
        else:
            assert browser.post(filled(route)).status_code == 405, route


def test_the_forms_are_found(strict_root: Client) -> None:
    forms = {route for route in routes("") + routes("api/") if is_form(strict_root, route)}
    assert {f"proposals/<uuid:proposal_id>/{verb}" for verb in ("approve", "modify", "reject")} < forms
    assert {f"api/proposals/<str:proposal_id>/{verb}/" for verb in ("approve", "modify", "reject")} < forms
    assert {f"bottles/<slug:slug>/{verb}" for verb in ("rollback", "rotate", "start", "stop")} < forms
    assert {f"bottles/<slug:slug>/routes/<str:host>/{verb}" for verb in ("change", "withdraw")} < forms
    assert not forms & {"", "bottles/", "history/", "proposals/<uuid:proposal_id>/", "api/proposals/"}


def test_no_address_takes_a_post_without_the_csrf_token(strict_root: Client) -> None:
    for route in EVERY_ROUTE:
        content = {"content_type": "application/json"} if route.startswith("api/") else {}
        answer = strict_root.post(filled(route), **content)
        if answer.status_code == 302 and route.startswith("admin/"):  # an old address that leads elsewhere
            assert strict_root.get(filled(route)).status_code == 302, route
            continue
        assert answer.status_code in {403, 405}, (route, answer.status_code)


def test_no_address_answers_strangers(db: None) -> None:
    for route in set(EVERY_ROUTE) - OPEN:
        for method in ("get", "post", "head", "put", "delete", "options"):
            answer = getattr(Client(), method)(filled(route))
            assert answer.status_code in {302, 401, 403, 405}, (route, method, answer.status_code)
            if answer.status_code == 302:
                assert answer.headers["Location"].startswith("/admin/login/"), route


# --- a viewer, by every way there is


@pytest.fixture
def proposal(agent_a: Bottle) -> Proposal:
    return ask(agent_a, "*.example.com")


@pytest.fixture
def valerie(db: None) -> User:
    user = User.objects.create_user("valerie", password="correct-horse-battery", is_staff=True)
    user.groups.add(Group.objects.get(name=roles.VIEWER))
    return user


def world() -> dict[str, list[dict[str, Any]]]:
    """Every row of ours."""
    return {
        model._meta.label: list(model._default_manager.order_by("pk").values())
        for label in OURS
        for model in apps.get_app_config(label).get_models()
        if model._meta.label != "supervise.LoginFailure"
    }


def everything(proposal: Proposal) -> dict[str, Any]:
    """What any form might want: enough that only the missing right can be why nothing happens."""
    return {
        "seen_digest": seen(proposal),
        f"seen-{proposal.pk}": seen(proposal),
        "note": "because",
        "confirmed": "yes",
        "payload": json.dumps(proposal.payload),
        "proposal": str(proposal.pk),
        "_selected_action": str(proposal.pk),
        "selected": str(proposal.pk),
        "for": "900",
        "until": "3600",
        "version": "1",
        "seen_version": "1",
        "host": "*.example.com",
        "bottle": proposal.bottle.slug,
        "post": "yes",
    }


@contextmanager
def no_row_written(what: object) -> Iterator[None]:
    """None of ours. To compare all rows after each address would take longer than all the requests."""
    with CaptureQueriesContext(connection) as captured:
        yield
    assert not [query["sql"] for query in captured if WRITES.match(query["sql"])], what


def test_looking_changes_nothing(strict_root: Client, proposal: Proposal) -> None:
    before, fields = world(), everything(proposal)
    for route in EVERY_ROUTE:
        for path in (filled(route), filled(route, proposal_id=proposal.pk, slug=proposal.bottle.slug)):
            with no_row_written(path):
                strict_root.get(path, fields)
    assert world() == before


# A preview changes nothing; the others need a sandbox or a rebuild, and have tests of their own.
ELSEWHERE = {
    "proposals/<uuid:proposal_id>/preview",
    "bottles/<slug:slug>/routes/<str:host>/preview",
    "bottles/<slug:slug>/start",
    "bottles/<slug:slug>/stop",
} | {f"proposals/<uuid:proposal_id>/rebuild/{verb}" for verb in ("again", "roll-back")}
OF_PROPOSALS = ("approve", "modify", "reject", "snooze", "wake")
OF_ROUTES = ("change", "withdraw")
FORMS = {
    *(f"proposals/<uuid:proposal_id>/{verb}" for verb in OF_PROPOSALS),
    "bulk/approve", "bulk/reject", "draft/approve", "refusals/<int:refusal_id>/lift",
    "bottles/<slug:slug>/rollback", "bottles/<slug:slug>/rotate",
    *(f"bottles/<slug:slug>/routes/<str:host>/{verb}" for verb in OF_ROUTES),
}  # fmt: skip


def test_every_form_of_the_pages_is_known(strict_root: Client) -> None:
    assert {route for route in routes("") if is_form(strict_root, route)} == FORMS | ELSEWHERE


@pytest.fixture
def usual(agent_a: Bottle, operator: User) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """For every form an address and fields that it takes, in a world where they all mean something."""
    for host, verb in (("before.example.com", decisions.approve), ("never.example.com", decisions.reject)):
        earlier = ask(agent_a, host)
        more = {"stop_asking": True} if verb is decisions.reject else {}
        verb(earlier.pk, actor=operator, seen_digest=seen(earlier), note="No.", **more)
    low = ask(agent_a, "low.example.com", path_allowlist=["/v1"], methods=["GET"], lease={"ttl_seconds": 60})
    unfiled = {"host": "draft.example.com"}
    draft = drafts.draft_of(agent_a, "egress-block", unfiled)
    edited = {"host": "low.example.com", "paths_are": "some", "paths": "/v1/a", "methods": ["GET"]}
    fields = {**edited, "seen_digest": seen(low), "note": "because", "for": "15m"}
    picked = {"id": str(low.pk), f"seen-{low.pk}": seen(low), "note": "because"}
    drafted = {"bottle": agent_a.slug, "tool": "egress-block", "payload": json.dumps(unfiled)}
    drafted["seen_digest"] = drafts.review_draft(draft).seen_digest
    back = {"version": "1", "seen_version": "2"}
    return {
        **{
            f"proposals/<uuid:proposal_id>/{verb}": ({"proposal_id": low.pk}, fields) for verb in OF_PROPOSALS
        },
        "bulk/approve": ({}, picked),
        "bulk/reject": ({}, picked),
        "draft/approve": ({}, drafted),
        "refusals/<int:refusal_id>/lift": ({"refusal_id": StandingRefusal.objects.get().pk}, {}),
        "bottles/<slug:slug>/rollback": ({"slug": agent_a.slug}, back),
        "bottles/<slug:slug>/rotate": ({"slug": agent_a.slug}, {}),
        **{
            f"bottles/<slug:slug>/routes/<str:host>/{verb}": (
                {"slug": agent_a.slug, "host": "before.example.com"},
                {"paths_are": "some", "paths": "/v1", "methods_are": "all", "seen_version": "2"},
            )
            for verb in OF_ROUTES
        },
    }


def test_what_an_operator_changes_by_a_form_a_viewer_does_not(
    valerie: User, operator: User, usual: Any
) -> None:
    operator.groups.add(Group.objects.get(name=roles.OPERATOR))
    looking, acting, before = browser_of(valerie), browser_of(operator), world()
    for route in FORMS:
        values, fields = usual[route]
        looking.post(filled(route, **values), fields)
        assert world() == before, route
        with transaction.atomic():
            acting.post(filled(route, **values), fields)
            assert world() != before, f"or the viewer's try of {route} shows nothing"
            transaction.set_rollback(True)


def test_a_viewer_changes_nothing_by_any_other_page(valerie: User, proposal: Proposal) -> None:
    browser, before, fields = browser_of(valerie), world(), everything(proposal)
    for route in set(routes("")) - FORMS:
        with no_row_written(route):
            browser.post(filled(route, proposal_id=proposal.pk, slug=proposal.bottle.slug), fields)
    assert world() == before


@pytest.mark.parametrize("by", ["key", "session"])
def test_a_viewer_changes_nothing_by_the_api(valerie: User, proposal: Proposal, by: str) -> None:
    headers = {"Authorization": f"Bearer {api_keys.create(valerie, 'script')}"} if by == "key" else {}
    browser = Client() if by == "key" else browser_of(valerie)
    before = world()
    body = json.dumps({**everything(proposal), "payload": proposal.payload})
    for route in routes("api/"):
        address = filled(route, proposal_id=proposal.pk, slug=proposal.bottle.slug)
        with no_row_written(route):
            answer = browser.post(address, body, "application/json", headers=headers)
        assert answer.status_code in {403, 405}, route
    assert world() == before


MODELS = [model for model in admin.site._registry if model._meta.app_label in (*OURS, "auth")]


def test_a_viewer_changes_nothing_by_the_admin(valerie: User, proposal: Proposal) -> None:
    browser, before, fields = browser_of(valerie), world(), everything(proposal)
    for model in MODELS:
        base = f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
        rows = [str(pk) for pk in model._default_manager.values_list("pk", flat=True)]
        names = ["delete_selected", *(getattr(action, "__name__", action) for action in _actions(model))]
        with no_row_written(model):
            for name in names:
                browser.post(base, {**fields, "action": name, "_selected_action": rows})
            for pk in [*rows, "1"]:
                for page in ("change/", "delete/"):
                    assert browser.post(f"{base}{pk}/{page}", fields).status_code in {302, 403, 404}
            assert browser.post(f"{base}add/", fields).status_code == 403
    assert world() == before


def _actions(model: Any) -> Any:
    return admin.site._registry[model].actions or ()


# --- websockets


def sockets() -> list[str]:
    application: Any = websocket_application
    while not hasattr(application, "routes"):
        application = getattr(application, "application", None) or application.inner
    return [str(route.pattern) for route in application.routes]


def socket_to(path: str, client: Client | None, origin: str | None) -> Socket:
    headers = [(b"host", b"127.0.0.1:8000")]
    if origin is not None:
        headers.append((b"origin", origin.encode()))
    if client is not None:
        cookie = client.cookies[settings.SESSION_COOKIE_NAME].value
        headers.append((b"cookie", f"{settings.SESSION_COOKIE_NAME}={cookie}".encode()))
    return Socket(websocket_application, f"/{path}", headers)


def test_the_sockets_are_found() -> None:
    assert "ws/queue/" in sockets()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("path", sockets())
async def test_no_socket_takes_strangers_or_other_sites(path: str, valerie: User) -> None:
    browser = await sync_to_async(browser_of)(valerie)
    assert (await socket_to(path, browser, HERE).connect())[0], "a viewer at home gets in"
    for client, origin in [
        (None, HERE),
        (browser, "https://evil.example.com"),
        (browser, "http://127.0.0.1.evil.example.com"),
        (browser, "http://127.0.0.1:3000"),
        (browser, "https://127.0.0.1:8000"),
        (browser, "http://localhost:8000"),
        (browser, "null"),
        (browser, None),
    ]:
        assert not (await socket_to(path, client, origin).connect())[0], origin


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("path", sockets())
async def test_a_viewer_changes_nothing_by_a_socket(path: str, valerie: User, proposal: Proposal) -> None:
    before = await sync_to_async(world)()
    socket = socket_to(path, await sync_to_async(browser_of)(valerie), HERE)
    assert (await socket.connect())[0]
    facts = await sync_to_async(everything)(proposal)
    for verb in ("approve", "reject", "modify", "proposal.event", "decide", "bottle.event"):
        message = {**facts, "type": verb, "kind": verb, "action": verb, "id": str(proposal.pk)}
        await socket.send_to(text_data=json.dumps(message))
    await socket.disconnect()
    assert await sync_to_async(world)() == before
