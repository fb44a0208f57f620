"""An operator takes one route back, or changes it, while downloads are under way. All processes are real."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.support.site import HOST, Site
from tests.support.timeouts import PATIENCE

pytestmark = pytest.mark.process
SLUG = "withdrawn"
OTHER, OTHER_ADDRESS = "other.example.com", "127.0.0.4"


@pytest.fixture(scope="module")
def site(shared_site: Site) -> Site:
    shared_site.origins.add(OTHER, OTHER_ADDRESS, shared_site.authority.context([OTHER]))
    return shared_site.beside(SLUG)


@contextmanager
def download(site: Site, host: str) -> Iterator[Iterator[str]]:
    """The lines of an answer that goes on for minutes."""
    options = {"proxy": site.proxy_url(), "verify": site.tls, "timeout": PATIENCE, "trust_env": False}
    with (
        httpx.Client(**options) as client,
        client.stream("GET", f"https://{host}/events") as answer,
    ):
        assert answer.status_code == 200
        yield (line for line in answer.iter_lines() if line)


def is_cut(lines: Iterator[str]) -> bool:
    """Whether it breaks off, after what was already on its way."""
    try:
        return not any(number > 2000 for number, _ in enumerate(lines))
    except httpx.TransportError:
        return True


def send(site: Site, host: str, verb: str, **fields: str) -> httpx.Response:
    """The form of the route's page, as a browser sends it."""
    address = f"/bottles/{SLUG}/routes/{host}/"
    with site.console() as browser:
        page = browser.get(f"{address}?open={verb}").text
        carried = dict(re.findall(r'name="(csrfmiddlewaretoken|seen_version)" value="([^"]+)"', page))
        return browser.post(
            f"{address}{verb}",
            data={**carried, **fields},
            headers={"Origin": str(browser.base_url).rstrip("/")},
        )


@pytest.mark.parametrize("paths", [[], ["/events"]], ids=["tunnelled", "inspected"])
def test_a_withdrawal_cuts_the_downloads_of_that_route_and_no_others(site: Site, paths: list[str]) -> None:
    site.allow(path_allowlist=paths)
    site.allow(OTHER, pinned_addresses=[OTHER_ADDRESS])
    with download(site, HOST) as withdrawn, download(site, OTHER) as kept:
        assert next(withdrawn) == next(kept) == "data: 0"
        answer = send(site, HOST, "withdraw")
        assert re.search(
            r"The route of api\.example\.com is withdrawn, as version \d+, and live\.", answer.text
        )
        assert is_cut(withdrawn)
        assert len([next(kept) for _ in range(50)]) == 50, "the other one goes on"
    refused = site.fetch(f"http://{HOST}/events")
    assert (refused.status_code, refused.json()["reason"]) == (403, "no-route")
    listed = json.loads(site.server.manage("routes", "list", SLUG, "--json"))
    assert [route["host"] for route in listed["routes"]] == listed["gate_hosts"] == [OTHER]


def test_a_narrowed_route_refuses_the_next_request(site: Site) -> None:
    site.allow(path_allowlist=["/events", "/else"])
    assert site.fetch(f"https://{HOST}/else").status_code == 200
    fields = {"paths_are": "some", "paths": "/events", "methods_are": "all", "pinned": "127.0.0.2"}
    assert "is changed, as version" in send(site, HOST, "change", **fields).text
    refused = site.fetch(f"https://{HOST}/else")
    assert (refused.status_code, refused.json()["reason"]) == (403, "path")
    with download(site, HOST) as lines:
        assert next(lines) == "data: 0"
