"""The egress process among the others: killed, left alone, refused its port, orphaned."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import httpx
import pytest

from egress.tables.proxy_client import EgressProcess
from tests.support import ROOT
from tests.support import request_load as load
from tests.support.agent import Agent, Operator, crowd
from tests.support.bottle_cli import Bottles
from tests.support.proxy_harness import Client, request
from tests.support.request_load import Counts
from tests.support.requirements import require
from tests.support.server import RunningServer, prepare, running_server, stop
from tests.support.site import HOST, Site
from tests.support.timeouts import wait_until

pytestmark = pytest.mark.process
SLUG = "life"
LOST = r"Records of requests that were ever lost before they could be read: ([\d,]+)\."
ALLOWED, FORBIDDEN = f"https://{HOST}/allowed/x", f"https://{HOST}/elsewhere"


@pytest.fixture(scope="module")
def site(shared_site: Site) -> Site:
    site = shared_site.beside(SLUG)
    assert site.allow(path_allowlist=["/allowed"])["live_version"] == 2
    return site


def answers(site: Site) -> bool:
    """Whether the proxy lets through what it should and nothing else."""
    try:
        return (site.fetch(ALLOWED).status_code, site.fetch(FORBIDDEN).status_code) == (200, 403)
    except httpx.TransportError:
        return False


def test_a_proxy_killed_under_load_comes_back_with_its_last_table_and_the_console_shows_the_gap(
    site: Site,
) -> None:
    """Both kinds of requests on many connections, allowed and refused in turn."""
    site.allow(load.HOST, path_allowlist=["/allowed"], pinned_addresses=[load.ADDRESS])
    killed, version = site.pid("egress"), site.fetch("http://_egress.local/allowlist").json()["version"]
    so_far, gaps = len(site.server.log()), known_gaps(site)
    with load.under_way(site.directory, site.origins, site.authority, rate=0) as under_way:
        wait_until(lambda: is_flowing(under_way, Counts(0, 0, 0)), what="traffic")
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: under_way.counts().dropped, what="the gap")
        before = under_way.counts()
        wait_until(lambda: is_flowing(under_way, before), what="the restart")
    dropped = {outcome: count for outcome, count in under_way.seen.items() if outcome.endswith("dropped")}
    assert len(dropped) == 2, under_way
    assert sum(dropped.values()) >= load.CONNECTIONS // 2, under_way  # so many waited for an answer
    kinds = {f"{kind} {outcome}" for kind in ("plain", "inspected") for outcome in ("allowed", "refused")}
    assert set(under_way.seen) - set(dropped) == kinds, "never a wrong answer"
    assert site.pid("egress") != killed
    assert site.fetch("http://_egress.local/allowlist").json()["version"] == version
    with site.console() as browser:
        wait_until(lambda: known_gaps(site) > gaps, what="the news")
        wait_until(lambda: "the egress proxy answers again" in browser.get("/").text, what="its end")
    assert f"egress ended with code -{int(signal.SIGKILL)}; restarting" in site.server.log()[so_far:]


def known_gaps(site: Site) -> int:
    """How many times the console's list says that the proxy was away."""
    with site.console() as browser:
        listed = browser.get("/admin/egress/proxyevent/").text
    return listed.count("Bottles reach nothing while it is away")


def is_flowing(under_way: load.UnderWay, before: Counts) -> bool:
    """Many more answers on every connection than before."""
    now, many = under_way.counts(), 20 * load.CONNECTIONS
    return now.plain - before.plain > many and now.inspected - before.inspected > many


def test_records_of_both_runs_are_in_the_database(site: Site) -> None:
    def kept() -> str:
        return browser.get(f"/admin/egress/trafficrecord/?q={SLUG}&verdict=allowed").text

    with site.console() as browser:
        site.fetch(f"{ALLOWED}/first-run")
        wait_until(lambda: "/allowed/x/first-run" in kept(), what="the first record")
        os.kill(site.pid("egress"), signal.SIGKILL)
        wait_until(lambda: answers(site), what="the restart")
        site.fetch(f"{ALLOWED}/second-run")
        wait_until(lambda: "/allowed/x/second-run" in kept(), what="the second record")
        assert kept().count("/allowed/x/first-run") == 1


def test_a_proxy_that_is_stopped_loses_no_record(site: Site) -> None:
    """What is under way ends one by one, and each end is noted while the next is still to come."""
    stopped, so_far = site.pid("egress"), len(site.server.log())
    with site.console() as browser, ExitStack() as opened:
        uploads = {f"/allowed/upload-{n}": opened.enter_context(proxy_socket(site)) for n in range(3)}
        for path, client in uploads.items():
            client.send(request("POST", f"http://{HOST}{path}", HOST, "Content-Length: 4", body=b"ab"))
        os.kill(stopped, signal.SIGTERM)
        wait_until(lambda: "egress INFO stopping" in site.server.log()[so_far:], what="the stop")
        for path, client in uploads.items():
            client.send(b"cd")
            assert client.answer().json["body"] == "abcd"
            wait_until(partial(is_noted, browser, path), what="its record")
    wait_until(lambda: site.pids("egress") not in ([], [stopped]) and answers(site), what="the restart")


def test_records_that_a_held_reader_lost_are_counted_on_the_page_that_lists_the_others(site: Site) -> None:
    """More than the proxy keeps, while the web process cannot read."""
    flood, web = 22_000, site.pid("web")

    def told() -> list[int]:
        """How many are listed, and how many were lost."""
        lost = re.search(LOST, browser.get("/admin/egress/trafficrecord/?verdict=local").text)
        return [_local_records(site), int(lost[1].replace(",", "")) if lost else 0]

    with site.console() as browser:
        site.fetch("http://_egress.local/all-so-far")
        wait_until(partial(is_noted, browser, "/all-so-far"), what="all records so far")
        before = told()
        os.kill(web, signal.SIGSTOP)
        try:
            with proxy_socket(site) as client:
                for _ in range(flood // 100):
                    client.send(request("GET", "http://_egress.local/health", "_egress.local") * 100)
                    assert {client.answer().status for _ in range(100)} == {200}
        finally:
            os.kill(web, signal.SIGCONT)
        wait_until(lambda: sum(told()) == sum(before) + flood, what="an account of all of them")
        assert told()[1] - before[1] >= flood - 21_000


@contextmanager
def proxy_socket(site: Site) -> Iterator[Client]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(site.directory / "sockets" / "proxy.sock"))
        yield Client(connection)


def _local_records(site: Site) -> int:
    """The page counts to 10,000 only."""
    with closing(sqlite3.connect(site.server.home / "bot-bottle.sqlite3", timeout=30)) as database:
        counted = database.execute("select count(*) from egress_trafficrecord where verdict = 'local'")
        return int(counted.fetchone()[0])


def is_noted(browser: httpx.Client, path: str) -> bool:
    return path in browser.get(f"/admin/egress/trafficrecord/?q={SLUG}").text


def test_the_proxy_serves_on_while_the_web_process_is_dead(site: Site) -> None:
    web, proxy = site.pid("web"), site.pid("egress")
    os.kill(web, signal.SIGSTOP)  # held, so that the supervisor does not restart it at once
    try:
        assert all(answers(site) for _ in range(20))
    finally:
        os.kill(web, signal.SIGKILL)
    assert answers(site)
    wait_until(lambda: site.pids("web") not in ([], [web]), what="the web process's restart")
    wait_until(lambda: site.tool("list-egress-routes"), what="the web process")
    assert site.pid("egress") == proxy, "nobody touched the proxy"


def test_a_change_made_while_the_proxy_is_dead_is_live_soon_after(site: Site) -> None:
    os.kill(site.pid("egress"), signal.SIGKILL)
    told = site.ask(host=HOST, path_allowlist=["/elsewhere"], grant={
        "host": HOST, "path_allowlist": ["/allowed", "/later"], "pinned_addresses": ["127.0.0.2"],
    })  # fmt: skip
    assert told["status"] == "modified"
    wait_until(lambda: served(site, f"https://{HOST}/later") == 200, what="the change")
    assert served(site, FORBIDDEN) == 403


@pytest.mark.parametrize("left", ["", "older"])
def test_what_a_power_cut_may_leave_of_the_table_is_mended(site: Site, left: str) -> None:
    """The files are not synced to the disk: after one, they can be those of before, or empty."""
    files = [site.directory / name for name in ("gate.yaml", "routes.yaml")]
    before = [file.read_text() for file in files]
    site.ask(host=HOST, path_allowlist=["/elsewhere"], grant={
        "host": HOST, "path_allowlist": ["/allowed", "/since"], "pinned_addresses": ["127.0.0.2"],
    })  # fmt: skip
    for file, text in zip(files, before, strict=True):
        file.write_text(text if left == "older" else "")
    os.kill(site.pid("egress"), signal.SIGKILL)
    wait_until(lambda: served(site, f"https://{HOST}/since") == 200, what="the table")


def test_a_bad_file_is_on_the_consoles_pages_for_as_long_as_it_is_bad(site: Site) -> None:
    """Of a bottle of its own: what a test before this one left behind may still be mended."""
    site.server.create_bottle("torn")
    proxy = EgressProcess(site.server.home / "run" / "egress.sock")
    routes = site.server.home / "bottles" / "torn" / "routes.yaml"
    good = routes.read_text()

    def shown() -> list[bool]:
        sentence = "routes.yaml is not valid YAML. Version 1 stays live."
        pages = ("/", "/bottles/torn/", f"/bottles/{SLUG}/")
        return [sentence in browser.get(page).text for page in pages]

    with site.console() as browser:
        routes.write_text("routes: [")
        os.kill(site.pid("egress"), signal.SIGHUP)
        wait_until(lambda: shown() == [True, True, False], what="the sentence")
        routes.write_text(good)
        assert proxy.reload("torn").problem is None
        wait_until(lambda: shown() == [False] * 3, what="its end")


async def test_a_call_is_answered_only_when_the_proxy_has_taken_the_table(site: Site) -> None:
    proxy = site.pid("egress")
    async with crowd() as client:
        agent = Agent(client, site.server.mcp_url, site.bottle["token"])
        operator = Operator(client, site.server.console_url, site.key)
        call = asyncio.create_task(agent.ask(HOST, path_allowlist=["/held"]))
        (proposal,) = await operator.pending(1, SLUG)
        os.kill(proxy, signal.SIGSTOP)
        try:
            deciding = asyncio.create_task(operator.decide(proposal["id"], "approve"))
            decided = {"status": "pending"}
            while decided["status"] == "pending":
                decided = (await agent.call("check-proposal", proposal_id=proposal["id"]))[
                    "structuredContent"
                ]
            assert (decided["status"], decided["live_version"]) == ("approved", None)
            assert not call.done(), "approved is not yet live"
        finally:
            os.kill(proxy, signal.SIGCONT)
        answer = await call
        assert await asyncio.to_thread(served, site, f"https://{HOST}/held") == 200
        assert answer["live_version"] is not None
        assert (await deciding).status_code == 200


def served(site: Site, url: str) -> int:
    try:
        return site.fetch(url).status_code
    except httpx.TransportError:
        return 0


def test_a_port_in_use_stops_everything_with_one_sentence(tmp_path: Path) -> None:
    prepare(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        finished = subprocess.run(
            [sys.executable, "manage.py", "up"],
            cwd=ROOT, capture_output=True, text=True, timeout=90, check=False,
            env={
                "PATH": os.environ["PATH"], "BOTTLE_HOME": str(tmp_path), "SUPERVISE_PORT": "0",
                "CONSOLE_PORT": "0", "EGRESS_PORT": str(port),
            },
        )  # fmt: skip
    assert finished.returncode == 2
    said = [line for line in finished.stderr.splitlines() if not line.startswith("{")]  # access lines
    assert said == [
        f"bot-bottle: Cannot listen on 127.0.0.1:{port} (Address already in use). "
        "Stop what uses it, or set EGRESS_PORT."
    ]


@pytest.fixture(scope="module")
def web_alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """It should have a proxy at its side, but nobody started one."""
    with running_server(tmp_path_factory.mktemp("alone"), "web", EGRESS_PROXY="1") as server:
        yield server


def test_without_the_egress_process_nothing_starts(web_alone: RunningServer) -> None:
    require(shutil.which("bwrap"), "bubblewrap", "apt-get install bubblewrap")
    bottles = Bottles(web_alone)
    bottles.manifest("alone")
    refused = bottles.command("run", "alone", "--", "true")
    assert refused.code == 1
    assert "make up" in refused.error


def test_a_proxy_that_hangs_does_not_hold_up_the_servers_end(web_alone: RunningServer) -> None:
    """The time to stop must not grow with the bottles that wait for the proxy's word. It ends the server."""
    web_alone.manage("shell", "-c", MANY_BOTTLES)
    with _silent(web_alone.home / "run" / "egress.sock") as asked:
        wait_until(lambda: any(line.startswith(b"POST /reload/") for line in asked), what="the caretaker")
        stop(web_alone.process, 30)
    assert web_alone.process.returncode == 0


MANY_BOTTLES = """
from supervise.bottles import records
for number in range(12):
    records.create(f"waits-{number}", author="tests")
"""


@contextmanager
def _silent(path: Path) -> Iterator[list[bytes]]:
    """A control socket that takes every question and answers none; what was asked."""
    asked: list[bytes] = []
    kept: list[socket.socket] = []

    def listen() -> None:
        with suppress(OSError):
            while True:
                kept.append(listener.accept()[0])
                asked.append(kept[-1].recv(4096))

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        threading.Thread(target=listen, daemon=True).start()
        try:
            yield asked
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for connection in kept:
                connection.close()
