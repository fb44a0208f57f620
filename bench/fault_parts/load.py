"""Agents that ask and fetch, and operators who decide, while things go wrong.

All of them note what they were told."""

from __future__ import annotations

import asyncio
import random
import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from bench.fault_parts.installation import ORIGINS, Installation
from tests.support.agent import Agent

AWAY = (httpx.HTTPError, OSError, ValueError, KeyError, AssertionError)
TIMEOUT = httpx.Timeout(20)
# An approval as asked grants a host that resolves to nothing here: it is decided like any other.
VERDICTS = ("modify",) * 5 + ("reject",) * 3 + ("approve",)


@dataclass
class Evidence:
    """What the outside world saw."""

    told: list[tuple[str, str, int | None]] = field(default_factory=list)  # proposal, status, live version
    decided: list[tuple[str, str, int]] = field(default_factory=list)  # proposal, verb, HTTP status
    fetched: int = 0  # requests that got through
    refused: int = 0
    failed: int = 0  # calls that a fault ended


class Load:
    def __init__(self, made: Installation, seed: int, agents: int, operators: int) -> None:
        self.evidence = Evidence()
        self._made, self._ended = made, asyncio.Event()
        self._bottles = [made.json("bottle", "create", f"agent-{number}") for number in range(agents)]
        create = ("apikey", "create", "--user", "operator", "--name")
        self._keys = [made.json(*create, f"key-{number}")["key"] for number in range(operators)]
        self._seed = seed

    @property
    def slugs(self) -> list[str]:
        return [bottle["slug"] for bottle in self._bottles]

    def end(self) -> None:
        self._ended.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for bottle in self._bottles:
                group.create_task(self._agent(bottle, random.Random(f"{self._seed} {bottle['slug']}")))
            for number, key in enumerate(self._keys):
                group.create_task(self._operator(key, random.Random(f"{self._seed} operator {number}")))

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), seconds)

    # --- agents

    async def _agent(self, bottle: dict[str, str], chance: random.Random) -> None:
        tls = ssl.create_default_context(cafile=self._made.home / "bottles" / bottle["slug"] / "ca.pem")
        number = 0
        while not self._ended.is_set():
            number += 1
            host, path = chance.choice(list(ORIGINS)), f"/{bottle['slug']}/{number}"
            try:
                answer = await self._ask(bottle, host, path)
            except AWAY:
                self.evidence.failed += 1
                await self._pause(0.2)
                continue
            self.evidence.told.append((answer["proposal_id"], answer["status"], answer["live_version"]))
            await self._fetch(bottle, tls, host, path)
            await self._fetch(bottle, tls, host, f"/{bottle['slug']}/never-asked-for")

    async def _ask(self, bottle: dict[str, str], host: str, path: str) -> dict[str, Any]:
        async with httpx.AsyncClient(trust_env=False) as client:
            agent = Agent(client, f"http://127.0.0.1:{self._made.ports['agent']}/mcp", bottle["token"])
            answer = await agent.ask(host, path_allowlist=[path], methods=["GET"])
        return {"live_version": None, **answer}

    async def _fetch(self, bottle: dict[str, str], tls: ssl.SSLContext, host: str, path: str) -> None:
        try:
            proxy = f"http://{bottle['slug']}:{bottle['token']}@127.0.0.1:{self._made.proxy_port}"
            options: dict[str, Any] = {"proxy": proxy, "verify": tls, "timeout": TIMEOUT, "trust_env": False}
            async with httpx.AsyncClient(**options) as client:
                answer = await client.get(f"https://{host}{path}")
        except AWAY:
            self.evidence.refused += 1  # a refused tunnel is an error to httpx
            return
        if answer.status_code == 200:
            self.evidence.fetched += 1
        else:
            self.evidence.refused += 1

    # --- operators

    async def _operator(self, key: str, chance: random.Random) -> None:
        while not self._ended.is_set():
            try:
                async with httpx.AsyncClient(
                    base_url=f"http://127.0.0.1:{self._made.ports['console']}",
                    headers={"Authorization": f"Bearer {key}"},
                    timeout=TIMEOUT,
                    trust_env=False,
                ) as client:
                    await self._decide_some(client, chance)
            except AWAY:
                pass
            await self._pause(chance.uniform(0, 0.3))

    async def _decide_some(self, client: httpx.AsyncClient, chance: random.Random) -> None:
        listed = await client.get("/api/proposals/?status=pending&page_size=20")
        listed.raise_for_status()
        for row in listed.json()["results"]:
            if chance.random() < 0.2:
                continue  # somebody else may, or nobody
            shown = (await client.get(f"/api/proposals/{row['id']}/")).raise_for_status().json()
            if shown["review"] is None:
                continue  # decided meanwhile
            verb, ask = chance.choice(VERDICTS), shown["payload"]
            body = {"seen_digest": shown["review"]["seen_digest"], "note": "decided by the bench"}
            if verb == "modify":
                wanted = ("host", "path_allowlist", "methods")
                body["payload"] = {key: ask[key] for key in wanted} | {
                    "pinned_addresses": [ORIGINS[ask["host"]]]
                }
            answer = await client.post(f"/api/proposals/{row['id']}/{verb}/", json=body)
            self.evidence.decided.append((row["id"], verb, answer.status_code))
