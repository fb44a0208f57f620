"""An agent and an operator as HTTP clients of a running server, for tests of real processes."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.timeouts import PATIENCE, until_patience_ends

PENDING = "/api/proposals/?status=pending"


def crowd() -> httpx.AsyncClient:
    """For many requests at once, each over a connection of its own.

    httpx's pool can close one that has been idle for its time just when another request begins on it.
    """
    return httpx.AsyncClient(
        limits=httpx.Limits(max_connections=600, max_keepalive_connections=0), trust_env=False
    )


@dataclass(frozen=True)
class Agent:
    """Speaks MCP 2025-11-25 to one endpoint."""

    client: httpx.AsyncClient
    url: str
    token: str

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The tool's result. Waits as long as the server does."""
        response = await self.client.post(
            self.url,
            json={
                "jsonrpc": "2.0",
                "id": 1,
                "method": "tools/call",
                "params": {"name": tool, "arguments": arguments},
            },
            headers={
                "Authorization": f"Bearer {self.token}",
                "MCP-Protocol-Version": "2025-11-25",
                "Accept": "application/json",
            },
            timeout=httpx.Timeout(330),
        )
        assert response.status_code == 200, response.text
        return json.loads(response.content)["result"]

    async def ask(self, host: str, **more: Any) -> dict[str, Any]:
        result = await self.call("egress-block", host=host, justification="tests need it", **more)
        return result["structuredContent"]


@dataclass(frozen=True)
class Operator:
    """Decides through the operator API with a key."""

    client: httpx.AsyncClient
    url: str
    key: str

    async def pending(self, expected: int, bottle: str = "") -> list[dict[str, Any]]:
        """The pending proposals (of one bottle, if it is named), once there are as many as expected."""
        which = f"{PENDING}&bottle={bottle}" if bottle else PENDING
        for _ in until_patience_ends():
            found = await self._all(which)
            if len(found) >= expected:
                return found
            await asyncio.sleep(0.1)
        raise AssertionError(f"only {len(found)} of {expected} proposals arrived")

    async def joined(self, proposal_id: str) -> None:
        """Returns once the same ask was filed again."""
        for _ in until_patience_ends():
            if (await self._get(f"/api/proposals/{proposal_id}/")).json()["joined"]:
                return
            await asyncio.sleep(0.1)
        raise AssertionError("nobody asked again")

    async def decide(self, proposal_id: str, verb: str, **body: Any) -> httpx.Response:
        review = (await self._get(f"/api/proposals/{proposal_id}/")).json()["review"] or {}
        return await self.client.post(
            f"{self.url}/api/proposals/{proposal_id}/{verb}/",
            # Decided since by another operator, it has no review: the answer then says who was first.
            json={"seen_digest": review.get("seen_digest", "none"), **body},
            headers=self._headers,
            timeout=PATIENCE,
        )

    async def _all(self, which: str) -> list[dict[str, Any]]:
        found, address = [], f"{self.url}{which}&page_size=200"
        while address:
            body = (await self._get(address.removeprefix(self.url))).json()
            found += body["results"]
            address = body["next"]
        return found

    async def _get(self, path: str) -> httpx.Response:
        response = await self.client.get(self.url + path, headers=self._headers, timeout=PATIENCE)
        response.raise_for_status()
        return response

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}
