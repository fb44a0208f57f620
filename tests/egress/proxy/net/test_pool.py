"""Connections to origins are kept for the next request of the same bottle, and for nobody else's."""

from __future__ import annotations

import pytest

from tests.support.proxy_harness import ADDRESSES, TOKENS, Client, Harness, eventually, get, pinned

pytestmark = pytest.mark.process
WAYS = {
    "plain": {"methods": ["GET"]},
    "inspected": {"methods": ["GET"]},  # the fast path
    "searched": {"dlp": {"in": True}},  # the task
    "credential": {"auth": {"scheme": "Bearer", "token_ref": "CANARY"}},
}


class Asking:
    """Each bottle through a connection of its own, to a host that nobody has asked for before."""

    def __init__(self, lab: Harness, way: str) -> None:
        self._lab = lab
        self._host = f"{way}.api.example.com"
        self._start = f"http://{self._host}" if way == "plain" else ""
        for slug in TOKENS:
            lab.publish(slug, [pinned(self._host, **WAYS[way])])
        self._clients: dict[str, Client] = {
            slug: lab.client(slug) if way == "plain" else lab.secured(self._host, slug=slug)
            for slug in TOKENS
        }

    def ask(self, slug: str) -> None:
        """The bottle's connection to the origin is idle when this returns."""
        answer = self._clients[slug].ask(get(f"{self._start}/of/{slug}", self._host))
        assert (answer.status, answer.json["target"]) == (200, f"/of/{slug}")
        eventually(lambda: self._kept(slug) == 1, "an idle connection")

    def _kept(self, slug: str) -> int:
        return int(self._lab.control("GET", "/status")["bottles"][slug]["pooled"])

    def used_by(self) -> list[set[str]]:
        """For each connection that the origin saw, the bottles whose requests came on it."""
        connections = self._lab.origins.connections
        return [{slug for slug in TOKENS if f"/of/{slug} ".encode() in each.raw} for each in connections]


@pytest.fixture
def quiet(lab: Harness) -> Harness:
    """Nothing is kept of what other tests asked for."""
    for host in ADDRESSES:
        lab.origins.speak(host, b"!")
    pooled = lambda: [each["pooled"] for each in lab.control("GET", "/status")["bottles"].values()]  # noqa: E731
    eventually(lambda: not any(pooled()), "empty pools")
    return lab


@pytest.mark.parametrize("way", WAYS)
def test_two_bottles_never_share_a_connection_to_an_origin(quiet: Harness, way: str) -> None:
    asking = Asking(quiet, way)
    for slug in ("agent-a", "agent-b", "agent-b", "agent-a"):
        asking.ask(slug)
    assert asking.used_by() == [{"agent-a"}, {"agent-b"}]
