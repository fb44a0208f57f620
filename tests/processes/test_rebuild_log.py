"""A growing build log on real workers: whoever watches through whichever of them gets all of it in order."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import websockets

from tests.support.image_build import building
from tests.support.server import RunningServer, running_server
from tests.support.site import post_form

pytestmark = pytest.mark.process
WATCHERS = 8


@pytest.fixture(
    scope="module", params=["one worker", pytest.param("two workers", marks=pytest.mark.services)]
)
def console(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    more = {} if request.param == "one worker" else {"REDIS_URL": "redis", "WEB_WORKERS": "2"}
    if more:
        more["REDIS_URL"] = request.getfixturevalue("redis")
    with running_server(tmp_path_factory.mktemp("log") / "home", **more) as server:
        server.create_bottle("built")
        yield server


@pytest.fixture(scope="module")
def signed_in(console: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=console.console_url, follow_redirects=True, trust_env=False) as browser:
        post_form(browser, "/admin/login/", username="operator", password=console.password, next="/history/")
        yield browser


class Watcher:
    """What a page does, without a page."""

    def __init__(self, browser: httpx.Client, proposal: str) -> None:
        self.browser = browser
        page = browser.get(f"/proposals/{proposal}/").text
        self.text = re.findall(r'<pre class="hostile log"[^>]*><bdi>(.*?)</bdi>', page, re.DOTALL)[0]
        self.asks: dict[str, Any] = {"progress": re.findall('data-progress="([^"]*)"', page)[0]}
        for name in ("rebuild", "offset"):
            self.asks[name] = int(re.findall(f'data-{name}="([^"]*)"', page)[0])
        self.progress: list[str] = []

    async def watch(self, until: str, *, leave_often: bool = False) -> None:
        """With `leave_often` it connects anew for every part."""
        while until not in self.text:
            async with self.connect() as socket:
                await socket.send(json.dumps(self.asks))
                async for message in socket:
                    self.take(json.loads(message))
                    if leave_often or until in self.text:
                        break
                    await socket.send(json.dumps(self.asks))

    def connect(self) -> Any:
        url = str(self.browser.base_url).rstrip("/")
        cookies = "; ".join(f"{name}={value}" for name, value in self.browser.cookies.items())
        return websockets.connect(
            f"{url.replace('http', 'ws')}/ws/rebuild-log/",
            origin=url,
            additional_headers={"Cookie": cookies},
            proxy=None,
        )

    def take(self, told: dict[str, Any]) -> None:
        if told["type"] == "progress":
            self.progress.append(told["progress"])
            self.asks["progress"] = told["progress"]
            return
        assert told["after"] == self.asks["offset"]
        self.text += told["text"]
        self.asks["offset"] = told["offset"]


async def test_everybody_gets_the_whole_log_as_it_grows(
    console: RunningServer, signed_in: httpx.Client
) -> None:
    with building(console, "built") as builder:
        builder.say("Step 1/2")
        watchers = [Watcher(signed_in, builder.proposal) for _ in range(WATCHERS)]
        assert {watcher.text for watcher in watchers} == {"Step 1/2\n"}
        async with asyncio.timeout(90), asyncio.TaskGroup() as tasks:
            for number, watcher in enumerate(watchers):
                tasks.create_task(watcher.watch("the end\n", leave_often=number % 2 == 1))
            for number in range(100):
                lines = [f"{number} {count} \x1b[31m" for count in range(number)]
                await asyncio.to_thread(builder.say, *lines)
            await asyncio.to_thread(builder.say, "the end", phase="failed")
    kept = builder.path.read_text()
    assert kept.count("\n") == 2 + sum(range(100))
    assert {watcher.text for watcher in watchers} == {kept.replace("\x1b", "⟦U+001B⟧")}


async def test_it_says_when_the_phase_changes(console: RunningServer, signed_in: httpx.Client) -> None:
    with building(console, "built") as builder:
        watcher = Watcher(signed_in, builder.proposal)
        async with asyncio.timeout(60), watcher.connect() as socket:
            await socket.send(json.dumps(watcher.asks))
            for phase in ("canary", "live"):
                await asyncio.to_thread(builder.say, phase=phase)
                watcher.take(json.loads(await socket.recv()))
        assert watcher.progress == ["canary-0", "live-0"]


async def test_a_reader_that_takes_nothing_is_sent_one_part(
    console: RunningServer, signed_in: httpx.Client
) -> None:
    with building(console, "built") as builder:
        watcher = Watcher(signed_in, builder.proposal)
        builder.say(*("x" * 1000 for _ in range(3000)))
        async with asyncio.timeout(60), watcher.connect() as socket:
            await socket.send(json.dumps(watcher.asks))
            watcher.take(json.loads(await socket.recv()))
            await asyncio.to_thread(builder.say, phase="canary")
            told = json.loads(await socket.recv())
            assert told["type"] == "progress", "no further part of the log is on the way"
        assert 0 < len(watcher.text) <= 32 * 1024


async def test_strangers_get_nothing(console: RunningServer, signed_in: httpx.Client) -> None:
    with building(console, "built") as builder:
        watcher = Watcher(signed_in, builder.proposal)
        with httpx.Client(base_url=console.console_url, trust_env=False) as nobody:
            watcher.browser = nobody
            with pytest.raises(websockets.exceptions.InvalidStatus) as refused:
                async with watcher.connect():
                    pass
        assert refused.value.response.status_code == 403


def test_the_page_without_script_has_the_log_so_far(console: RunningServer, signed_in: httpx.Client) -> None:
    with building(console, "built") as builder:
        builder.say("first")
        assert Watcher(signed_in, builder.proposal).text == "first\n"
        builder.say("second")
        assert Watcher(signed_in, builder.proposal).text == "first\nsecond\n"
