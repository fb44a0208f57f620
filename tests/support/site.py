"""All of bot-bottle as `up` starts it, an origin on loopback, a bottle that uses it, and an operator."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.support.agent import Agent, Operator, crowd
from tests.support.origins import Origins, TestAuthority
from tests.support.server import RunningServer, running_server
from tests.support.timeouts import PATIENCE

HOST, ADDRESS = "api.example.com", "127.0.0.2"
WHY = "tests need it"


class Site:
    """One bottle of a running bot-bottle. Several can have the same server and the same origins."""

    def __init__(
        self, server: RunningServer, origins: Origins, authority: TestAuthority, slug: str = "agent-a"
    ) -> None:
        self.server = server
        self.origins = origins
        self.authority = authority
        self.slug = slug
        self.told: list[str] = []  # everything that the agent was ever answered
        self.bottle = server.create_bottle(slug)
        self.key = api_key(server, slug)
        self.tls = ssl.create_default_context(cafile=str(authority.path))
        self.tls.load_verify_locations(self.directory / "ca.pem")

    def beside(self, slug: str) -> Site:
        """Another bottle of the same server."""
        return Site(self.server, self.origins, self.authority, slug)

    @property
    def directory(self) -> Path:
        return self.server.home / "bottles" / self.slug

    # --- the agent

    def proxy_url(self, bottle: dict[str, str] | None = None) -> str:
        """Where the proxy listens now: one that is started anew has another port."""
        bottle = bottle or self.bottle
        try:
            port = json.loads((self.server.home / "run" / "egress.json").read_text())["port"]
        except (OSError, ValueError) as away:
            raise httpx.ConnectError("there is no proxy now") from away
        return f"http://{bottle['slug']}:{bottle['token']}@127.0.0.1:{port}"

    def fetch(self, url: str, **options: Any) -> httpx.Response:
        """As a program in the bottle would: through the proxy, trusting the bottle's CA."""
        with httpx.Client(
            proxy=self.proxy_url(), verify=self.tls, timeout=PATIENCE, trust_env=False
        ) as client:
            answer = client.get(url, **options)
        self.told.append(f"{answer.status_code} {answer.reason_phrase} {answer.headers!r} {answer.text}")
        return answer

    def ask(self, *, grant: dict[str, Any], **arguments: Any) -> dict[str, Any]:
        """A tool call, and the operator who grants something of it. Returns when the call does."""

        async def both() -> dict[str, Any]:
            async with crowd() as client:
                agent = Agent(client, self.server.mcp_url, self.bottle["token"])
                operator = Operator(client, self.server.console_url, self.key)
                call = asyncio.create_task(agent.call("egress-block", justification=WHY, **arguments))
                (proposal,) = await operator.pending(1, self.slug)
                answer = await operator.decide(proposal["id"], "modify", payload=grant)
                assert answer.status_code == 200, answer.text
                return await call

        self.told.append(str(result := asyncio.run(both())))
        return dict(result["structuredContent"])

    def allow(self, host: str = HOST, **more: Any) -> dict[str, Any]:
        return self.ask(host=host, grant={"host": host, "pinned_addresses": [ADDRESS], **more})

    def tool(self, name: str, **arguments: Any) -> dict[str, Any]:
        async def call() -> dict[str, Any]:
            async with crowd() as client:
                return await Agent(client, self.server.mcp_url, self.bottle["token"]).call(name, **arguments)

        self.told.append(str(result := asyncio.run(call())))
        return result

    def context(self, **query: str) -> str:
        """What the agent is told when its session begins."""
        answer = httpx.get(
            self.server.mcp_url.replace("/mcp", "/session-context"),
            params=query,
            headers={"Authorization": f"Bearer {self.bottle['token']}"},
            trust_env=False,
        )
        assert answer.status_code == 200, answer.text
        self.told.append(answer.text)
        return answer.text

    # --- the operator

    @contextmanager
    def console(self) -> Iterator[httpx.Client]:
        """A signed-in browser, as far as the server can tell."""
        with signed_in(self.server) as browser:
            yield browser

    # --- the processes

    def pids(self, command: str) -> list[int]:
        """Children of the supervisor that run this command of manage.py."""
        up = self.server.process.pid
        children = Path(f"/proc/{up}/task/{up}/children").read_text().split()
        return [int(pid) for pid in children if command_of(int(pid))[-1:] == [command]]

    def pid(self, command: str) -> int:
        (pid,) = self.pids(command)
        return pid


@contextmanager
def signed_in(server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(
        base_url=server.console_url, follow_redirects=True, timeout=PATIENCE, trust_env=False
    ) as browser:
        page = post_form(browser, "/admin/login/", username="operator", password=server.password, next="/")
        assert page.status_code == 200 and "Queue" in page.text
        yield browser


def api_key(server: RunningServer, name: str = "tests") -> str:
    created = server.manage("apikey", "create", "--user", "operator", "--name", name, "--json")
    return str(json.loads(created)["key"])


def command_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    except OSError:
        return []


def post_form(browser: httpx.Client, address: str, **fields: str) -> httpx.Response:
    """Fetch the page, fill in its form, send it as a browser would."""
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', browser.get(address).text)
    assert token, address
    return browser.post(
        address,
        data={"csrfmiddlewaretoken": token[1], **fields},
        headers={"Referer": f"{browser.base_url}{address}", "Origin": str(browser.base_url).rstrip("/")},
    )


@contextmanager
def running_site(home: Path, **variables: str) -> Iterator[Site]:
    home.mkdir(parents=True, exist_ok=True)
    authority, origins = TestAuthority(home), Origins()
    origins.add(HOST, ADDRESS, authority.context([HOST]))
    settings = {
        "EGRESS_UPSTREAM_CA": str(authority.path),
        "EGRESS_PINNED_PORTS": f"443={origins.tls_port},80={origins.http_port}",
        "SUPERVISE_RESPONSE_TIMEOUT_SECONDS": "180",
        **variables,
    }
    try:
        with running_server(home / "h", **settings) as server:
            yield Site(server, origins, authority)
    finally:
        origins.close()
