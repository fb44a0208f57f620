"""The data plane's settings, from the environment; junk stops the start and names the variable."""

from __future__ import annotations

import json
import logging
import re
import ssl
import sys
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path

from botbottle.core import environment
from botbottle.core.environment import BadSetting
from botbottle.core.files import write_atomically
from egress.contract import sharding
from egress.policy.addresses import Network

log = logging.getLogger(__name__)
_MIB = 1024 * 1024
# Enough to search one body, whatever its coding, or the largest that is signed. A body with two codings, a
# rare case, can need twice as much, and is refused if there is no more.
_LEAST_HELD_MIB = 17
TOLD = 16  # connections beyond the limit that get an answer; more are just closed


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what one bottle can make us hold or wait for."""

    head_bytes: int = 64 * 1024
    head_fields: int = 128
    held_body_bytes: int = 16 * 1024 * 1024  # only where a signature needs the whole body first
    held_bytes: int = 128 * 1024 * 1024  # of all its requests, in such bodies, and to search and decode any
    head_seconds: float = 15
    keep_alive_seconds: float = 75
    handshake_seconds: float = 15
    connect_seconds: float = 10
    response_seconds: float = 600
    idle_seconds: float = 600
    tunnel_idle_seconds: float = 3600
    stop_seconds: float = 10
    leaving_seconds: float = 30  # to send the rest before a close; at most idle_seconds
    connections: int = 512
    pooled: int = 128  # fewer than the requests under way at once would mean a handshake for each


@dataclass(frozen=True, slots=True)
class Gateway:
    """Where the operator's own proxy is (see request/upstream_proxy.py)."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Config:
    """`pinned_ports` are the ports on which origins with pinned addresses listen instead of 443 and 80.

    `number` is which of the `processes` this is. `as_json`: say on stdout where it is, once it serves.
    """

    home: Path
    bind: str = "127.0.0.1"
    port: int | None = None
    supervise_port: int = 9100
    upstream_ca: Path | None = None
    pinned_ports: dict[int, int] = field(default_factory=dict)
    forbidden_networks: tuple[Network, ...] = ()
    nat64: bool = False
    refuse_at_connect: bool = False
    fast_path: bool = True
    gateway: Gateway | None = None
    limits: Limits = field(default_factory=Limits)
    processes: int = 1
    number: int = 0
    as_json: bool = False

    @property
    def bottles(self) -> Path:
        return self.home / "bottles"

    @property
    def run(self) -> Path:
        return self.home / "run"

    @property
    def control_socket(self) -> Path:
        return sharding.control_socket(self.run, self.number)

    @property
    def discovery(self) -> Path:
        return self.run / sharding.DISCOVERY

    def publish(self, port: int | None) -> None:
        """Write down the port and the number of processes. On a full disk we serve without that file."""
        text = json.dumps({"port": port, "processes": self.processes}) + "\n"
        try:
            write_atomically(self.discovery, text, also_when_full=True)
        except OSError as error:
            log.error("%s cannot be written: %s", self.discovery, error.strerror)
        if self.as_json:
            sys.stdout.write(json.dumps({"bind": self.bind, "port": port}) + "\n")
            sys.stdout.flush()

    def forget_the_killed(self) -> None:
        """Blank what a killed run wrote. The file keeps its place on a disk that may be full."""
        if self.discovery.is_file():
            with self.discovery.open("r+b") as file:
                file.write(b"\n" * self.discovery.stat().st_size)

    def owner(self, slug: str) -> int:
        return sharding.owner(slug, self.processes)


def from_environment() -> Config:
    """Raises BadSetting."""
    return Config(
        home=Path(environment.text("BOTTLE_HOME", "~/.bot-bottle")).expanduser(),
        bind=environment.text("EGRESS_BIND", "127.0.0.1"),
        port=environment.port("EGRESS_PORT", 9101),
        supervise_port=environment.port("SUPERVISE_PORT", 9100),
        upstream_ca=_authorities("EGRESS_UPSTREAM_CA"),
        pinned_ports=_pinned_ports("EGRESS_PINNED_PORTS"),
        forbidden_networks=_networks("EGRESS_FORBIDDEN_NETWORKS"),
        nat64=environment.flag("EGRESS_NAT64"),
        refuse_at_connect=environment.flag("EGRESS_REFUSE_AT_CONNECT"),
        fast_path=environment.flag("EGRESS_FAST_PATH", default=True),
        gateway=_gateway("EGRESS_UPSTREAM_PROXY"),
        limits=_limits(),
        processes=sharding.configured("EGRESS_PROCESSES"),
    )


def _limits() -> Limits:
    usual = Limits()
    connections = environment.whole_number(
        "EGRESS_MAX_CONNECTIONS", usual.connections, at_least=1, at_most=100_000
    )
    idle = environment.seconds("EGRESS_IDLE_SECONDS", usual.idle_seconds)
    return Limits(
        head_seconds=environment.seconds("EGRESS_HEAD_SECONDS", usual.head_seconds),
        handshake_seconds=environment.seconds("EGRESS_HANDSHAKE_SECONDS", usual.handshake_seconds),
        keep_alive_seconds=environment.seconds("EGRESS_KEEP_ALIVE_SECONDS", usual.keep_alive_seconds),
        connect_seconds=environment.seconds("EGRESS_CONNECT_SECONDS", usual.connect_seconds),
        response_seconds=environment.seconds("EGRESS_RESPONSE_SECONDS", usual.response_seconds),
        idle_seconds=idle,
        leaving_seconds=min(usual.leaving_seconds, idle),
        tunnel_idle_seconds=environment.seconds("EGRESS_TUNNEL_IDLE_SECONDS", usual.tunnel_idle_seconds),
        stop_seconds=environment.seconds("EGRESS_STOP_SECONDS", usual.stop_seconds),
        connections=connections,
        held_bytes=_MIB
        * environment.whole_number(
            "EGRESS_MAX_HELD_MIB", usual.held_bytes // _MIB, at_least=_LEAST_HELD_MIB, at_most=1_000_000
        ),
    )


def _pinned_ports(name: str) -> dict[int, int]:
    """`443=8443,80=8080`: for origins on private addresses that an operator pinned, and only for those."""
    ports = {}
    for word in environment.words(name):
        match = re.fullmatch(r"(443|80)=([1-9][0-9]{0,4})", word)
        if match is None or int(match[2]) > 65535:
            raise BadSetting(f"{name} must look like 443=8443,80=8080: {word!r} does not.")
        ports[int(match[1])] = int(match[2])
    return ports


def _networks(name: str) -> tuple[Network, ...]:
    """`203.0.113.7,2001:db8:5::/48`: where no name may lead, such as to a public address of the console."""
    try:
        return tuple(ip_network(word) for word in environment.words(name))
    except ValueError as error:
        raise BadSetting(f"{name} must list addresses or networks: {error}.") from error


def _gateway(name: str) -> Gateway | None:
    text = environment.text(name)
    if not text:
        return None
    match = re.fullmatch(r"http://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):([1-9][0-9]{0,4})/?", text)
    if match is None or int(match[2]) > 65535:
        raise BadSetting(f"{name} must look like http://127.0.0.1:8888: {text!r} does not.")
    return Gateway(match[1].strip("[]"), int(match[2]))


def _authorities(name: str) -> Path | None:
    """Check the file here, so that the problem is reported once and not by each process."""
    text = environment.text(name)
    if not text:
        return None
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(text)
    except OSError as error:  # ssl.SSLError is one
        raise BadSetting(f"{name}={text} cannot be used: {error}.") from error
    return Path(text)
