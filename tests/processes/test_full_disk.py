"""A bottle fills the disk that the database is on: operators go on, agents are told, nothing is lost.

All processes and the full file system are real. Something that nobody can stop takes every byte that becomes
free.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.agent import Operator, crowd
from tests.support.bottle_cli import Bottles
from tests.support.full_disk import Hog, small_file_system
from tests.support.requirements import require
from tests.support.site import HOST, Site, running_site
from tests.support.timeouts import wait_until

pytestmark = pytest.mark.process
PAGES = ("/", "/bottles/", "/bottles/agent-a/", "/history/", "/refusals/", "/admin/")
FILLING = "while :; do head -c 1000000 /dev/zero >> /workspace/junk; done 2>/dev/null"
# As much as would be noticed, in a file system that is the bottle's own.
IN_MEMORY = "head -c 30000000 /dev/zero > /tmp/junk; touch /workspace/done; exec sleep 1000"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    require(shutil.which("bwrap"), "bubblewrap", "apt-get install bubblewrap")
    with (
        small_file_system(tmp_path / "disk", "96m") as disk,
        running_site(disk / "home") as site,
    ):
        yield site
        for slug in ("filler", "in-memory"):
            site.server.command("bottle", "stop", slug)


def free(site: Site) -> int:
    found = os.statvfs(site.server.home)
    return found.f_bavail * found.f_frsize


def ask(site: Site, host: str) -> dict[str, Any]:
    return site.tool("egress-block", host=host, justification="tests need it")


def decide(site: Site, verb: str, **body: Any) -> None:
    async def look_and_decide() -> httpx.Response:
        async with crowd() as client:
            operator = Operator(client, site.server.console_url, site.key)
            (proposal,) = await operator.pending(1, site.slug)
            return await operator.decide(proposal["id"], verb, **body)

    answer = asyncio.run(look_and_decide())
    assert answer.status_code == 200, answer.text


@contextmanager
def asking(site: Site, host: str) -> Iterator[Future[dict[str, Any]]]:
    """A call that waits for a decision."""
    threads = ThreadPoolExecutor(1)
    yield threads.submit(ask, site, host)
    threads.shutdown()  # after a failure, the server's end ends the call


def withdraw(browser: httpx.Client, slug: str, host: str) -> str:
    address = f"/bottles/{slug}/routes/{host}/"
    page = browser.get(f"{address}?open=withdraw").text
    carried = dict(re.findall(r'name="(csrfmiddlewaretoken|seen_version)" value="([^"]+)"', page))
    origin = {"Origin": str(browser.base_url).rstrip("/")}
    return browser.post(f"{address}withdraw", data=carried, headers=origin).text


def reason(site: Site) -> str:
    refused = site.fetch(f"http://{HOST}/")
    assert refused.status_code == 403
    return str(refused.json()["reason"])


def restart(site: Site, command: str, how: signal.Signals) -> None:
    before = site.pid(command)
    os.kill(before, how)
    wait_until(lambda: site.pids(command) not in ([], [before]), what=f"another {command} process")


def answers(site: Site) -> bool:
    try:
        with site.console() as browser:
            return browser.get("/").status_code == 200
    except (httpx.TransportError, AssertionError):
        return False


def serves(site: Site) -> bool:
    try:
        return site.fetch("http://nobody.example.com/").status_code == 403
    except httpx.TransportError:
        return False


def check_the_books(site: Site) -> None:
    assert "record is intact" in site.server.manage("verify_audit")
    with sqlite3.connect(site.server.home / "bot-bottle.sqlite3", timeout=30) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    database.close()


def test_operators_go_on_while_the_disk_is_full(site: Site) -> None:
    bottles = Bottles(site.server)
    site.allow(path_allowlist=["/"])
    assert site.fetch(f"https://{HOST}/").status_code == 200
    bottles.started("in-memory", "sh", "-c", IN_MEMORY)
    quiet = site.server.home / "bottles" / "in-memory" / "workspace" / "done"
    wait_until(quiet.exists, what="the bottle that writes in its own memory")
    with asking(site, "rejected.example.com") as call:
        wait_until(lambda: site.server.pending(site.slug), what="the ask")
        bottles.started("filler", "sh", "-c", FILLING)
        wait_until(lambda: "disk was nearly full" in bottles.row("filler")["problem"], what="its stop")
        assert bottles.row("filler")["state"] == "stopped"
        assert bottles.row("in-memory")["state"] == "running"
        assert (site.server.home / "bottles" / "filler" / "workspace" / "junk").stat().st_size > 2_000_000
        with Hog(site.server.home):
            wait_until(lambda: free(site) == 0, what="a full disk")
            _operators_go_on(site, call)
            bottles.ok("stop", "in-memory")
            check_the_books(site)
    (site.server.home / "bottles" / "filler" / "workspace" / "junk").unlink()
    _everything_goes_on(site)


def _operators_go_on(site: Site, call: Future[dict[str, Any]]) -> None:
    with site.console() as browser:  # signs in
        for address in PAGES:
            page = browser.get(address)
            assert page.status_code == 200
            assert 'id="disk-notice"' in page.text, address
            assert "filled the disk: bottle filler" in page.text
        told = ask(site, "later.example.com")
        assert told["isError"]
        assert "disk of the operator's machine is full: nothing was queued" in told["content"][0]["text"]
        decide(site, "reject", note="not now")
        assert call.result()["structuredContent"]["status"] == "rejected"
        answer = withdraw(browser, site.slug, HOST)
        assert re.search(rf"The route of {re.escape(HOST)} is withdrawn, as version \d+, and live\.", answer)
    assert reason(site) == "no-route"
    restart(site, "egress", signal.SIGKILL)
    wait_until(lambda: serves(site), what="the egress process")
    assert reason(site) == "no-route"
    for how in (signal.SIGKILL, signal.SIGTERM):
        restart(site, "web", how)
        wait_until(lambda: answers(site), what="the web process")


def _everything_goes_on(site: Site) -> None:
    wait_until(lambda: free(site) > 12_000_000, what="room")
    with site.console() as browser:
        assert 'id="disk-notice"' not in browser.get("/").text
    with asking(site, "later.example.com") as call:
        decide(site, "approve")
        assert call.result()["structuredContent"]["status"] == "approved"
    check_the_books(site)
