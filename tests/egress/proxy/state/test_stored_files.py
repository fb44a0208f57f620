"""What the data plane keeps: its bottles' CAs, uses of leases, and records."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress.dlp.scanner import memory_of_scan
from egress.policy.routes import Lease, Route
from egress.proxy.config import from_environment
from egress.proxy.state.lease_counter import LeaseCounter
from egress.proxy.state.records import Records, blank_record
from egress.proxy.tls.authority import CERTIFICATE, Authority, ensure
from egress.proxy.tls.session import Session
from tests.support import ROOT
from tests.support.timeouts import PATIENCE

# --- certificates


def test_a_ca_is_made_once_and_its_key_is_private(tmp_path: Path) -> None:
    first = ensure(tmp_path, "agent-a")
    assert ensure(tmp_path, "agent-a") == first
    assert (tmp_path / "ca-key.pem").stat().st_mode & 0o777 == 0o600
    assert b"PRIVATE" not in (tmp_path / "ca.pem").read_bytes()


def test_the_public_certificate_is_written_again_when_it_is_lost(tmp_path: Path) -> None:
    ensure(tmp_path, "agent-a")
    pem = (tmp_path / "ca.pem").read_bytes()
    (tmp_path / "ca.pem").write_text("something else")
    ensure(tmp_path, "agent-a")
    assert (tmp_path / "ca.pem").read_bytes() == pem


def shake_hands(ours: Session, trusted: Path, name: str | None, *protocols: str) -> ssl.SSLObject:
    """The client's end of it. Raises ssl.SSLError."""
    context = ssl.create_default_context(cafile=str(trusted))
    context.check_hostname = name is not None
    if protocols:
        context.set_alpn_protocols(protocols)
    here, there = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(here, there, server_hostname=name)
    for _ in range(3):
        with suppress(ssl.SSLWantReadError):
            client.do_handshake()
        ours.feed(memoryview(there.read()))
        with suppress(OSError):
            ours.shake_hands()
        here.write(ours.pending_output())
    return client


def test_contexts_are_kept_within_bounds(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "agent-a", keep=3)
    hosts = [f"h{number}.example" for number in range(5)]
    for host in hosts:
        shake_hands(authority.session_for(host), tmp_path / CERTIFICATE, host)
    assert len(authority) == 3
    assert authority._kept(hosts[4]) is not None
    assert authority._kept(hosts[0]) is None


def test_nothing_is_signed_for_a_name_that_nobody_greets_with(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "agent-a")
    for name in ("other.example", "h1.example.org", None):
        with pytest.raises(ssl.SSLError):
            shake_hands(authority.session_for("h1.example"), tmp_path / CERTIFICATE, name)
    assert len(authority) == 0


def test_a_name_is_signed_once_for_all_that_greet_with_it(tmp_path: Path) -> None:
    authority, host, trusted = Authority(tmp_path, "agent-a"), "h0.example", tmp_path / CERTIFICATE
    sessions = [authority.session_for(host) for _ in range(3)]  # all before the first greeting
    seen = [shake_hands(each, trusted, host, "h2", "http/1.1") for each in sessions]
    assert len({end.getpeercert(binary_form=True) for end in seen}) == 1
    assert {end.selected_alpn_protocol() for end in seen} == {"http/1.1"}
    assert {end.version() for end in seen} == {"TLSv1.3"}
    with pytest.raises(ssl.SSLError):  # also where there is one already
        shake_hands(authority.session_for(host), trusted, "other.example")


def test_a_certificate_that_cannot_be_made_ends_the_handshake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_leaf(*_: object) -> NoReturn:
        raise ValueError("The name is no name")

    session = Authority(tmp_path, "agent-a").session_for("h0.example")
    monkeypatch.setattr(Authority, "_leaf", no_leaf)
    with pytest.raises(ssl.SSLError):
        shake_hands(session, tmp_path / CERTIFICATE, "h0.example")
    assert "bottle agent-a: no certificate can be made" in caplog.text


@pytest.mark.parametrize(
    "content", ["", "nonsense", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"]
)
def test_a_damaged_key_is_not_replaced_silently(tmp_path: Path, content: str) -> None:
    (tmp_path / "ca-key.pem").write_text(content)
    with pytest.raises(ValueError):
        Authority(tmp_path, "agent-a")
    assert (tmp_path / "ca-key.pem").read_text() == content


# --- uses of leases


def leased(uses: int, granted: datetime) -> Route:
    return Route("a.example", lease=Lease(max_uses=uses, granted_at=granted))


def test_uses_are_counted_and_saved(tmp_path: Path) -> None:
    granted = datetime(2026, 1, 1, tzinfo=UTC)
    path, route = tmp_path / "uses.json", leased(2, granted)
    uses = LeaseCounter(path)
    assert [uses.take(route), uses.take(route), uses.take(route)] == [True, True, False]
    assert LeaseCounter(path).left(route) == 0  # also if the process was killed now
    assert LeaseCounter(path).take(leased(2, datetime(2026, 1, 2, tzinfo=UTC)))


def test_routes_without_a_count_are_never_used_up(tmp_path: Path) -> None:
    uses = LeaseCounter(tmp_path / "uses.json")
    assert all(uses.take(Route("a.example")) for _ in range(10))
    assert uses.left(Route("a.example")) is None


def test_what_is_no_longer_in_the_table_is_forgotten(tmp_path: Path) -> None:
    route = leased(1, datetime(2026, 1, 1, tzinfo=UTC))
    uses = LeaseCounter(tmp_path / "uses.json")
    assert uses.take(route)
    uses.forget_others([])
    assert uses.take(route)


@pytest.mark.parametrize("content", ["", "[]", '{"a.example ": "many"}', "\xff"])
def test_a_damaged_count_file_stops_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "uses.json").write_text(content, encoding="latin-1")
    assert LeaseCounter(tmp_path / "uses.json").take(leased(1, datetime(2026, 1, 1, tzinfo=UTC)))


# --- records


async def read(records: Records, number: int, boot: str = "", wait: float = 0) -> dict[str, Any]:
    """As the control plane gets it."""
    return dict(json.loads((await records.after(number, boot=boot, wait=wait)).as_json()))


def bottles(batch: dict[str, Any]) -> list[str]:
    return [record["bottle"] for record in batch["records"]]


async def test_a_reader_gets_every_record_once() -> None:
    records = Records(keep=100)
    first = await read(records, 0)
    for number in range(5):
        records.add(blank_record(f"b{number}"))
    batch = await read(records, first["next"], first["boot"])
    assert bottles(batch) == [f"b{number}" for number in range(5)]
    assert bottles(await read(records, batch["next"], batch["boot"])) == []


async def test_a_reader_that_falls_behind_is_told_how_many_it_missed() -> None:
    records = Records(keep=3)
    boot = (await read(records, 0))["boot"]
    for number in range(10):
        records.add(blank_record(f"b{number}"))
    batch = await read(records, 2, boot)
    assert (bottles(batch), batch["dropped"]) == (["b7", "b8", "b9"], 5)


async def test_a_flood_pushes_out_its_own_records_and_nobody_elses() -> None:
    records = Records(keep=100)
    boot = (await read(records, 0))["boot"]
    for number in range(1000):
        records.add(blank_record("flood"))
        if number % 50 == 0:
            records.add(blank_record("quiet"))
    batch = await read(records, 0, boot)
    assert bottles(batch).count("quiet") == 20
    assert len(bottles(batch)) + batch["dropped"] == 1020


@given(st.lists(st.sampled_from("abc"), max_size=300), st.integers(1, 40))
async def test_what_is_read_is_in_order_and_what_is_lost_is_counted(whose: str, every: int) -> None:
    records, number, boot, found, lost = Records(keep=30), 0, "", [], 0
    for count, bottle in enumerate(whose, start=1):
        record = blank_record(bottle)
        record.status = count
        records.add(record)
        if count % every == 0:
            batch = await read(records, number, boot)
            number, boot = batch["next"], batch["boot"]
            found += [each["status"] for each in batch["records"]]
            lost += batch["dropped"]
            assert number == count == len(found) + lost
    assert found == sorted(set(found))


async def test_records_of_bottles_without_number_stay_within_bounds() -> None:
    records = Records(keep=10)
    for number in range(1000):
        records.add(blank_record(f"b{number}"))
    assert bottles(await read(records, 0)) == [f"b{number}" for number in range(990, 1000)]


async def test_a_reader_of_an_earlier_run_starts_anew() -> None:
    records = Records()
    records.add(blank_record("b0"))
    assert bottles(await read(records, 500, "earlier")) == ["b0"]


async def test_a_reader_can_wait_for_the_next_record() -> None:
    records = Records()
    boot = (await read(records, 0))["boot"]
    waiting = asyncio.create_task(read(records, 0, boot, wait=10))
    await asyncio.sleep(0)
    records.add(blank_record("b0"))
    assert bottles(await waiting) == ["b0"]


async def test_the_end_waits_for_no_reader_that_there_never_was() -> None:
    records = Records()
    records.add(blank_record("b0"))
    async with asyncio.timeout(20):
        await records.read_out(3600)


async def test_the_end_waits_until_a_reader_has_kept_everything() -> None:
    records = Records()
    boot = (await read(records, 0))["boot"]
    records.add(blank_record("b0"))
    ending = asyncio.create_task(records.read_out(3600))
    batch = await read(records, 0, boot)
    assert await asyncio.wait({ending}, timeout=0.1) == (set(), {ending}), "it may still fail to keep them"
    await read(records, batch["next"], boot)
    async with asyncio.timeout(20):
        await ending


async def test_the_end_waits_for_a_reader_only_so_long() -> None:
    records = Records()
    await read(records, 0)
    records.add(blank_record("b0"))
    async with asyncio.timeout(20):
        await records.read_out(0.01)


@given(st.text(), st.text(max_size=2000))
async def test_a_record_survives_any_text(host: str, path: str) -> None:
    record = blank_record("b0")
    record.host, record.path, record.route = host, path, host
    record.ask, record.warnings = {"tool": path}, (host,)
    records = Records()
    records.add(record)
    [plain] = (await read(records, 0))["records"]
    assert (plain["host"], plain["path"], plain["route"]) == (host, path[:1024], host)
    assert (plain["ask"], plain["warnings"], plain["first_byte_ms"]) == ({"tool": path}, [host], None)


async def test_readers_get_nothing_of_what_is_noted_along_the_way() -> None:
    records, record = Records(), blank_record("b0")
    record.begin()
    record.url_is_clean = True
    record.answered(200)
    records.add(record)
    [plain] = (await read(records, 0))["records"]
    assert plain.keys() & {"clock", "url_is_clean", "ask", "finding", "warnings"} == set()
    assert 0 <= plain["first_byte_ms"] <= plain["duration_ms"] < 60_000


# --- settings and imports


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("EGRESS_PORT", "http"),
        ("EGRESS_PINNED_PORTS", "443"),
        ("EGRESS_PINNED_PORTS", "22=2222"),
        ("EGRESS_PINNED_PORTS", "443=99999"),
        ("EGRESS_FORBIDDEN_NETWORKS", "203.0.113.7/8"),
        ("EGRESS_FORBIDDEN_NETWORKS", "console.example"),
        ("EGRESS_HEAD_SECONDS", "0"),
        ("EGRESS_MAX_CONNECTIONS", "-1"),
        ("EGRESS_MAX_HELD_MIB", "16"),
        ("EGRESS_UPSTREAM_CA", "/nowhere/ca.pem"),
        ("EGRESS_REFUSE_AT_CONNECT", "maybe"),
        ("EGRESS_UPSTREAM_PROXY", "127.0.0.1:8888"),
        ("EGRESS_UPSTREAM_PROXY", "http://user:pass@127.0.0.1:8888"),
        ("EGRESS_UPSTREAM_PROXY", "https://127.0.0.1:8888"),
    ],
)
def test_a_bad_setting_stops_the_start_and_is_named(tmp_path: Path, name: str, value: str) -> None:
    finished = subprocess.run(
        [sys.executable, "manage.py", "egress"], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE,
        env={"BOTTLE_HOME": str(tmp_path / "h"), name: value}, check=False,
    )  # fmt: skip
    assert (finished.returncode, name in finished.stderr) == (2, True), finished.stderr


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_any_one_body_fits_into_the_least_that_may_be_held(
    monkeypatch: pytest.MonkeyPatch, coding: str
) -> None:
    monkeypatch.setenv("EGRESS_MAX_HELD_MIB", "17")
    limits = from_environment().limits
    assert memory_of_scan([coding], -1) <= limits.held_bytes
    assert limits.held_body_bytes + memory_of_scan([], -1) <= limits.held_bytes


def test_pinned_ports_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EGRESS_PINNED_PORTS", "443=8443, 80=8080")
    assert from_environment().pinned_ports == {443: 8443, 80: 8080}


@pytest.mark.parametrize(
    "module", ["egress.proxy.main", "egress.proxy.process.worker"]
)  # it loads the latter late
def test_the_data_plane_imports_no_django(module: str) -> None:
    code = f"import sys, {module}; print([name for name in sys.modules if name.startswith('django')])"
    finished = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert finished.stdout.strip() == "[]"
