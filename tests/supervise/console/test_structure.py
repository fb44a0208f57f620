"""What must hold for every page that exists, also for those written later."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from botbottle.models import Bottle
from tests.support import ROOT
from tests.support.proposals import ask

# Reachable without signing in, and why.
EXEMPT = {
    "admin/login/": "where one signs in",
    "admin/logout/": "signing out twice does nothing and leads to the sign-in page",
}
CHANGING = re.compile(
    r"/(approve|modify|reject|preview|snooze|wake|lift|change|withdraw|delete|rollback|rotate)/?$"
)
STAND_INS = {"uuid": "00000000-0000-0000-0000-000000000000", "int": "1", "path": "1", "str": "x", "slug": "x"}


def addresses(patterns: list[URLPattern | URLResolver] | None = None, prefix: str = "") -> Iterator[str]:
    for pattern in get_resolver().url_patterns if patterns is None else patterns:
        route = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from addresses(pattern.url_patterns, route)
        else:
            yield route


def concrete(route: str) -> str:
    route = re.sub(r"\(\?P<\w+>[^)]*\)", "x", route)  # regular expressions of the admin
    route = re.sub(r"<(?:(\w+):)?\w+>", lambda match: STAND_INS.get(match[1] or "str", "x"), route)
    return "/" + route.replace("^", "").replace("$", "").replace("\\Z", "").replace("\\.", ".")


EVERY_ADDRESS = sorted(set(addresses()))


def test_the_list_of_addresses_is_real() -> None:
    assert {"", "history/", "proposals/<uuid:proposal_id>/approve", "admin/login/"} <= set(EVERY_ADDRESS)


def test_every_address_needs_a_signed_in_operator(client: Client, db: None) -> None:
    for route, method in itertools.product(EVERY_ADDRESS, (client.get, client.post)):
        answer = method(concrete(route))
        if route in EXEMPT:
            assert answer.status_code in {200, 302}, route
            continue
        assert answer.status_code in {302, 401, 403, 405}, route
        if answer.status_code == 302:
            assert answer.headers["Location"].startswith("/admin/login/"), route


def test_every_address_that_changes_something_refuses_get(root: Client) -> None:
    """Those of the admin ask first, then change on POST."""
    changing = [route for route in EVERY_ADDRESS if CHANGING.search("/" + route)]
    for route in (route for route in changing if not route.startswith("admin/")):
        for method in ("get", "head", "put", "delete"):
            assert getattr(root, method)(concrete(route)).status_code == 405, (method, route)


def test_pages_to_read_refuse_post(root: Client, agent_a: Bottle) -> None:
    proposal = ask(agent_a)
    for path in (
        "/",
        "/queue/state",
        "/history/",
        f"/proposals/{proposal.pk}/",
        "/queue/list",
        "/queue/cards",
        "/queue/drafts",
        "/refusals/",
        "/bulk/",
    ):
        assert root.post(path).status_code == 405, path


def test_no_page_is_kept_by_a_cache_or_framed(olivia: Client) -> None:
    for path in ("/", "/history/", "/queue/state"):
        headers = olivia.get(path).headers
        assert "no-store" in headers["Cache-Control"]
        assert headers["X-Frame-Options"] == "DENY"
        assert "unsafe" not in headers["Content-Security-Policy"]


TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))
SCRIPTS = sorted((ROOT / "static").rglob("*.js"))
FORBIDDEN_IN_TEMPLATES = re.compile(
    r"\|\s*safe\b|safeseq|autoescape|<style|\sstyle\s*=|<script(?![^>]*\ssrc=)|\son\w+\s*=|javascript:|https?://"
)
FORBIDDEN_IN_SCRIPTS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setAttribute\(\s*[\"']on|https?://"
)


def found(pattern: re.Pattern[str], path: Path) -> list[str]:
    return [match[0] for match in pattern.finditer(path.read_text(encoding="utf-8"))]


def test_no_template_turns_escaping_off_or_has_code_inside() -> None:
    assert [path.name for path in TEMPLATES if found(FORBIDDEN_IN_TEMPLATES, path)] == []


def test_no_script_makes_elements_from_text() -> None:
    assert [path.name for path in SCRIPTS if found(FORBIDDEN_IN_SCRIPTS, path)] == []


def test_a_script_imports_only_scripts_that_are_there() -> None:
    """A browser says nothing of one that is missing: the page just does not come alive."""
    imported = [
        (path.parent / name).resolve()
        for path in SCRIPTS
        for name in re.findall(
            r"^import [^\"]*\"(\.[^\"]+)\"", path.read_text(encoding="utf-8"), re.MULTILINE
        )
    ]
    assert len(imported) > 5
    assert [path for path in imported if path not in SCRIPTS] == []


def test_these_checks_find_what_they_look_for(tmp_path: Path) -> None:
    bad = {
        "a.html": (FORBIDDEN_IN_TEMPLATES, ["{{ x|safe }}", "<p style='x'>", "<script>", "<a onclick=x>"]),
        "b.js": (FORBIDDEN_IN_SCRIPTS, ["a.innerHTML = x", "eval(x)"]),
    }
    for name, (pattern, examples) in bad.items():
        for example in examples:
            (tmp_path / name).write_text(example)
            assert found(pattern, tmp_path / name), example


def test_no_script_does_something_else_in_the_dark() -> None:
    """Light and dark are a matter of colours: the browser tests go through a flow in one of them."""
    look = re.compile(r"matchMedia|color-scheme|colorScheme|theme")
    assert [path.name for path in SCRIPTS if look.search(path.read_text())] == []
