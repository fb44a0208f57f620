"""Several egress processes as `up` starts them: two bottles, each with another one."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import httpx
import pytest

from egress.contract.sharding import owner
from tests.support.proxy_harness import numbered
from tests.support.server import is_running, stop
from tests.support.site import HOST, Site, running_site
from tests.support.timeouts import PATIENCE, wait_until

pytestmark = pytest.mark.process
ALLOWED = f"https://{HOST}/allowed/x"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("several"), EGRESS_PROCESSES="2") as site:
        assert site.allow(path_allowlist=["/allowed"])["live_version"] == 2
        site.other = site.server.create_bottle("agent-b")
        yield site


def processes(site: Site) -> dict[int, int]:
    return numbered(site.pid("egress"))


def refused(site: Site) -> int:
    """What agent-b, which has no routes, is answered; 0 without an answer."""
    try:
        with httpx.Client(proxy=site.proxy_url(site.other), timeout=PATIENCE, trust_env=False) as client:
            return client.get("http://nothing.example.com/of-b").status_code
    except httpx.TransportError:
        return 0


def allowed(site: Site) -> int:
    try:
        return site.fetch(ALLOWED).status_code
    except httpx.TransportError:
        return 0


def test_both_bottles_are_served_and_their_records_kept(site: Site) -> None:
    assert [owner(slug, 2) for slug in ("agent-a", "agent-b")] == [0, 1]
    assert (allowed(site), refused(site)) == (200, 403)
    with site.console() as browser:
        for slug, path in (("agent-a", "/allowed/x"), ("agent-b", "/of-b")):
            address = f"/admin/egress/trafficrecord/?q={slug}"
            wait_until(
                lambda address=address, path=path: path in browser.get(address).text,
                what=f"records of {slug}",
            )
    assert json.loads((site.server.home / "run" / "egress.json").read_text())["processes"] == 2


def test_one_that_is_killed_comes_back_while_the_other_serves_on(site: Site) -> None:
    before = processes(site)
    os.kill(before[1], signal.SIGKILL)
    assert all(allowed(site) == 200 for _ in range(5))
    wait_until(lambda: refused(site) == 403, what="the return")
    after = processes(site)
    assert (after[0], after[1] != before[1]) == (before[0], True)
    with site.console() as browser:
        events = "/admin/egress/proxyevent/"
        wait_until(lambda: "egress process 2 of 2" in browser.get(events).text, what="the news")
        assert "egress process 1 of 2" not in browser.get(events).text
    assert f"egress process 2 of 2 ended with code -{int(signal.SIGKILL)}; restarting" in site.server.log()
    told = site.tool("list-egress-routes")["structuredContent"]
    assert (told["source"], told["version"]) == ("proxy", 2)


def test_with_the_parent_all_are_started_anew(site: Site) -> None:
    parent, before = site.pid("egress"), processes(site)
    os.kill(parent, signal.SIGKILL)
    wait_until(lambda: site.pids("egress") not in ([], [parent]), what="the restart")
    wait_until(lambda: (allowed(site), refused(site)) == (200, 403), what="the return")
    assert not set(before.values()) & set(processes(site).values())
    assert not [pid for pid in before.values() if is_running(pid)]


def test_nothing_is_left_when_all_is_stopped(site: Site) -> None:
    """The last one: it ends the site."""
    pids = [site.pid("egress"), *processes(site).values()]
    stop(site.server.process, 30)
    assert site.server.process.returncode == 0
    assert not [pid for pid in pids if is_running(pid)]
    left = [path.name for path in (site.server.home / "run").iterdir() if path.suffix in (".sock", ".json")]
    assert left == []
