"""Tables come and go while traffic runs: nothing allowed is disturbed, nothing revoked goes on."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import ROOT
from tests.support.proxy_harness import (
    USUAL_ROUTES,
    Client,
    Harness,
    connect,
    eventually,
    get,
    now,
    pinned,
    running_lab,
)
from tests.support.timeouts import PATIENCE

pytestmark = pytest.mark.process
STREAMS = pinned("api.example.com", path_allowlist=["/events"])
BARE = pinned("bare.example.com")


def events(lab: Harness, host: str) -> Client:
    """A stream of events under way."""
    client = lab.secured(host)
    client.send(get("/events", host))
    while client.line():
        pass
    assert client.event()
    return client


def is_cut(client: Client) -> bool:
    """Whether it ends; a stream of events would go on for much longer than this waits."""
    patience = now() + PATIENCE
    try:
        while now() < patience:
            client.take(1)
    except (ConnectionError, ssl.SSLError):
        return True
    return False


def test_an_addition_disturbs_nothing(lab: Harness) -> None:
    lab.publish("agent-a", [STREAMS, BARE])
    inspected, tunnelled = events(lab, "api.example.com"), events(lab, "bare.example.com")
    lab.publish("agent-a", [STREAMS, BARE, pinned("other.example.com")])
    for _ in range(10):
        inspected.event()
        tunnelled.event()


def test_a_revoke_cuts_the_flows_of_that_route_and_no_others(lab: Harness) -> None:
    lab.publish("agent-a", [STREAMS, BARE])
    inspected, tunnelled = events(lab, "api.example.com"), events(lab, "bare.example.com")
    lab.publish("agent-a", [BARE])
    assert is_cut(inspected)
    assert tunnelled.event()
    lab.publish("agent-a", [])
    assert is_cut(tunnelled)


def test_a_revoke_stops_a_request_whose_connection_is_still_being_opened(lab: Harness) -> None:
    host, received = "slow.example.com", b""
    with socket.create_server(("127.0.0.12", lab.origins.tls_port)) as listening:
        listening.settimeout(PATIENCE)
        auth = {"scheme": "Bearer", "token_ref": "CANARY"}
        lab.publish("agent-a", [{"host": host, "pinned_addresses": ["127.0.0.12"], "auth": auth}])
        client = lab.secured(host)
        client.send(get("/x", host))
        connection, _ = listening.accept()
    connection.settimeout(PATIENCE)
    lab.publish("agent-a", [])
    assert is_cut(client)
    context = lab.authority.context([host])
    with connection, suppress(OSError), context.wrap_socket(connection, server_side=True) as opened:
        received = opened.recv(65536)
    assert received == b""


def test_a_narrower_path_cuts_what_is_outside_of_it(lab: Harness) -> None:
    lab.publish("agent-a", [STREAMS])
    client = events(lab, "api.example.com")
    lab.publish("agent-a", [pinned("api.example.com", path_allowlist=["/elsewhere"])])
    assert is_cut(client)


@pytest.mark.parametrize(
    "change",
    [
        {"host": "*.example.com", "auth": None},
        {"auth": None},
        {"auth": {"scheme": "token", "token_ref": "CANARY"}},
        {"dlp": {"in": True}},
        {"pinned_addresses": ["127.0.0.2"]},
    ],
)
def test_a_flow_ends_when_its_request_would_now_be_made_on_other_terms(
    lab: Harness, change: dict[str, Any]
) -> None:
    route = pinned("secret.example.com", auth={"scheme": "Bearer", "token_ref": "CANARY"})
    lab.publish("agent-a", [route])
    client = events(lab, "secret.example.com")
    lab.publish("agent-a", [route | change])
    assert is_cut(client)


def test_a_flow_goes_on_when_another_route_allows_it_on_the_same_terms(lab: Harness) -> None:
    lab.publish("agent-a", [STREAMS])
    client = events(lab, "api.example.com")
    lab.publish("agent-a", [{**STREAMS, "host": "*.example.com", "methods": ["GET"]}])
    for _ in range(10):
        client.event()


def test_a_tunnel_ends_when_its_route_needs_a_look_inside(lab: Harness) -> None:
    lab.publish("agent-a", [BARE])
    client = events(lab, "bare.example.com")
    lab.publish("agent-a", [pinned("bare.example.com", methods=["GET"])])
    assert is_cut(client)


def test_a_revoke_of_one_bottle_leaves_the_other_alone(lab: Harness) -> None:
    lab.publish("agent-a", [STREAMS])
    client = events(lab, "api.example.com")
    lab.publish("agent-b", [])
    assert client.event()


def test_an_idle_connection_obeys_the_new_table(lab: Harness) -> None:
    client = lab.secured("api.example.com")
    assert client.ask(get("/allowed", "api.example.com")).status == 200
    lab.publish("agent-a", [])
    assert client.ask(get("/allowed", "api.example.com")).reason == "no-route"


def test_the_end_of_a_lease_cuts_its_flows(lab: Harness) -> None:
    end = (datetime.now(UTC) + timedelta(seconds=5)).isoformat()  # both have to be open by then
    lab.publish("agent-a", [{**STREAMS, "lease": {"expires_at": end}}, BARE])
    leased, permanent = events(lab, "api.example.com"), events(lab, "bare.example.com")
    assert is_cut(leased)
    assert permanent.event()
    assert lab.client().ask(get("http://api.example.com/events", "api.example.com")).reason == "expired"


def test_a_lease_that_came_later_cuts_what_was_open_before_it(lab: Harness) -> None:
    lab.publish("agent-a", [STREAMS])
    client = events(lab, "api.example.com")
    end = (datetime.now(UTC) + timedelta(seconds=2)).isoformat()
    lab.publish("agent-a", [{**STREAMS, "lease": {"expires_at": end}}])
    assert is_cut(client)


def test_a_lease_counts_requests_and_tunnels_also_over_a_restart(tmp_path: Path) -> None:
    with running_lab(tmp_path / "h", EGRESS_STOP_SECONDS="0.5") as lab:
        granted = datetime.now(UTC).isoformat()
        lease = {"max_uses": 3, "granted_at": granted}
        routes = [
            pinned("api.example.com", path_allowlist=["/allowed"], lease=lease),
            pinned("bare.example.com", lease={"max_uses": 1, "granted_at": granted}),
        ]
        lab.publish("agent-a", routes)
        client = lab.secured("api.example.com")
        assert [client.ask(get("/allowed", "api.example.com")).status for _ in range(2)] == [200, 200]
        assert lab.secured("bare.example.com").ask(get("/x", "bare.example.com")).status == 200
        lab.restart()
        client = lab.secured("api.example.com")
        assert client.ask(get("/allowed", "api.example.com")).status == 200
        assert client.ask(get("/allowed", "api.example.com")).reason == "used-up"
        assert lab.client().ask(connect("bare.example.com")).reason == "used-up"
        later = (datetime.now(UTC) + timedelta(seconds=5)).isoformat()
        renewed = pinned(
            "api.example.com", path_allowlist=["/allowed"], lease={"max_uses": 1, "granted_at": later}
        )
        lab.publish("agent-a", [renewed])
        assert client.ask(get("/allowed", "api.example.com")).status == 200


@pytest.mark.parametrize(
    ("file", "content", "word"),
    [
        ("routes.yaml", "", "empty"),
        ("routes.yaml", "{", "YAML"),
        ("gate.yaml", "\x00", "YAML"),
        ("gate.yaml", None, "gate.yaml is missing"),
        ("routes.yaml", None, "routes.yaml is missing"),
        ("identity.json", "{", "identity.json"),
        (
            "identity.json",
            json.dumps({"slug": "agent-a", "token_sha256": "0" * 64, "supervise": "no"}),
            "supervise",
        ),
    ],
)
def test_a_bad_file_keeps_the_last_good_table(
    lab: Harness, file: str, content: str | None, word: str
) -> None:
    path = lab.home / "bottles" / "agent-a" / file
    good = path.read_text()
    version = lab.control("GET", "/status")["bottles"]["agent-a"]["version"]
    try:
        path.unlink() if content is None else path.write_text(content)
        ack = lab.control("POST", "/reload/agent-a")
        assert ack["version"] == version
        assert word in ack["problem"]
        assert lab.client().ask(get("http://api.example.com/allowed", "api.example.com")).status == 200
    finally:
        path.write_text(good)
    assert lab.control("POST", "/reload/agent-a")["problem"] is None


def test_another_broken_file_keeps_no_route_alive(lab: Harness) -> None:
    identity = lab.home / "bottles" / "agent-a" / "identity.json"
    good = identity.read_text()
    try:
        identity.write_text("{")
        version = lab.write("agent-a", [])
        ack = lab.control("POST", "/reload/agent-a")
        assert (ack["version"], "identity.json" in ack["problem"]) == (version, True)
        assert lab.client().ask(get("http://api.example.com/allowed", "api.example.com")).status == 403
    finally:
        identity.write_text(good)


def test_a_torn_table_is_refused(lab: Harness) -> None:
    path = lab.home / "bottles" / "agent-a" / "routes.yaml"
    good = path.read_text()
    try:
        path.write_text(good.replace("/allowed", "/forbidden"))
        assert "digest" in lab.control("POST", "/reload/agent-a")["problem"]
        assert lab.client().ask(get("http://api.example.com/forbidden", "api.example.com")).status == 403
    finally:
        path.write_text(good)


def test_another_bottles_table_is_refused(lab: Harness) -> None:
    mine, theirs = (lab.home / "bottles" / slug for slug in ("agent-a", "agent-b"))
    kept = {name: (mine / name).read_text() for name in ("routes.yaml", "gate.yaml")}
    try:
        for name in kept:
            (mine / name).write_text((theirs / name).read_text())
        assert "another bottle" in lab.control("POST", "/reload/agent-a")["problem"]
    finally:
        for name, text in kept.items():
            (mine / name).write_text(text)


def test_an_older_table_is_refused(lab: Harness) -> None:
    directory = lab.home / "bottles" / "agent-a"
    kept = {name: (directory / name).read_text() for name in ("routes.yaml", "gate.yaml")}
    version = lab.publish("agent-a", [])
    for name, text in kept.items():
        (directory / name).write_text(text)
    ack = lab.control("POST", "/reload/agent-a")
    assert (ack["version"], "older" in ack["problem"]) == (version, True)


def test_without_any_table_everything_is_denied(lab: Harness) -> None:
    directory = lab.home / "bottles" / "agent-new"
    directory.mkdir()
    try:
        (directory / "identity.json").write_text(f'{{"slug": "agent-new", "token_sha256": "{"0" * 64}"}}')
        ack = lab.control("POST", "/reload/agent-new")
        assert (ack["version"], ack["problem"] is not None) == (0, True)
        client = lab.client("agent-new")
        assert client.ask(get("http://api.example.com/allowed", "api.example.com")).reason == "no-route"
        assert lab.asked_names() == []
    finally:
        (directory / "identity.json").unlink()
    assert lab.control("POST", "/reload/agent-new")["version"] == 0
    assert "agent-new" not in lab.control("GET", "/status")["bottles"]
    assert not (directory / "sockets" / "proxy.sock").exists()


def test_the_open_connections_of_a_bottle_end_with_it(lab: Harness) -> None:
    directory = lab.home / "bottles" / "agent-old"
    directory.mkdir()
    (directory / "identity.json").write_text(f'{{"slug": "agent-old", "token_sha256": "{"0" * 64}"}}')
    lab.control("POST", "/reload/agent-old")
    clients = [lab.client("agent-old"), lab.client("agent-old", "agent.sock")]
    clients.append(lab.secured("new.example.org", slug="agent-old"))
    status = lambda: lab.control("GET", "/status")["bottles"]["agent-old"]  # noqa: E731
    eventually(lambda: status()["connections"] == len(clients), "the connections")
    (directory / "identity.json").unlink()
    lab.control("POST", "/reload/agent-old")
    assert [client.everything() for client in clients] == [b""] * len(clients)


def test_the_bottle_reads_its_live_table_as_files_without_any_secrets_name(lab: Harness) -> None:
    config = lab.home / "bottles" / "agent-a" / "current-config"
    auth = {"scheme": "Bearer", "token_ref": "CANARY_TOKEN"}
    version = lab.publish("agent-a", [pinned("api.example.com", auth=auth), pinned("unmirrored.example.com")],
                          gate=["api.example.com"])  # fmt: skip
    live = yaml.safe_load((config / "routes.yaml").read_text())
    assert (live["version"], [route["host"] for route in live["routes"]]) == (version, ["api.example.com"])
    assert (config / "allowlist").read_text() == "api.example.com\n"
    assert "CANARY_TOKEN" not in (config / "routes.yaml").read_text()
    lab.publish("agent-a", [])
    assert (config / "allowlist").read_text() == ""


@pytest.mark.parametrize("by", ["time", "use"])
def test_a_route_whose_lease_has_ended_is_no_longer_in_those_files(lab: Harness, by: str) -> None:
    config = lab.home / "bottles" / "agent-a" / "current-config"
    granted = datetime.now(UTC)
    ends = {"time": {"expires_at": (granted + timedelta(seconds=6)).isoformat()}, "use": {"max_uses": 1}}
    leased = pinned("api.example.com", lease={"granted_at": granted.isoformat(), **ends[by]})
    version = lab.publish("agent-a", [leased, BARE])
    assert (config / "allowlist").read_text() == "api.example.com\nbare.example.com\n"
    lab.client().ask(get("http://api.example.com/allowed", "api.example.com"))
    eventually(lambda: (config / "allowlist").read_text() == "bare.example.com\n", "the end of the lease")
    live = yaml.safe_load((config / "routes.yaml").read_text())
    assert (live["version"], [route["host"] for route in live["routes"]]) == (version, ["bare.example.com"])


def test_a_missing_secret_is_a_problem_only_while_a_route_wants_it(lab: Harness) -> None:
    def problems() -> list[str]:
        return list(lab.control("GET", "/status")["bottles"]["agent-a"]["credential_problems"])

    wants = pinned("api.example.com", auth={"scheme": "Bearer", "token_ref": "NOT_THERE"})
    over = {"granted_at": "2020-01-01T00:00:00Z", "expires_at": "2020-01-01T01:00:00Z"}
    for without in ([], [{**wants, "lease": over}]):
        lab.publish("agent-a", [wants])
        assert len(problems()) == 1 and "NOT_THERE" in problems()[0], "before anything is asked for"
        lab.publish("agent-a", without)
        assert problems() == []
    lab.publish("agent-a", [wants])
    lab.restart(kill=True)
    assert len(problems()) == 1, "also when the process is another"


def test_a_secret_that_is_no_key_for_aws_is_a_problem(lab: Harness) -> None:
    host = "s3.eu-west-1.amazonaws.com"
    lab.publish("agent-a", [pinned(host, auth={"scheme": "SigV4", "token_ref": "CANARY"})])
    assert lab.secured(host).ask(get("/", host)).reason == "credential-missing"
    (problem,) = lab.control("GET", "/status")["bottles"]["agent-a"]["credential_problems"]
    assert problem.startswith("The secret CANARY is not a key for AWS: ")


def test_a_version_is_live_since_it_was_first_loaded(lab: Harness) -> None:
    lab.publish("agent-a", [])
    first, again = (lab.control("POST", "/reload/agent-a") for _ in range(2))
    assert first["loaded_at"] == again["loaded_at"]
    lab.publish("agent-a", [])
    assert lab.control("POST", "/reload/agent-a")["loaded_at"] > again["loaded_at"]


def test_sighup_reads_every_table_again(lab: Harness) -> None:
    version = lab.write("agent-a", [])
    lab.process.send_signal(signal.SIGHUP)
    eventually(
        lambda: lab.control("GET", "/status")["bottles"]["agent-a"]["version"] == version, "the reload"
    )
    assert lab.client().ask(get("http://api.example.com/allowed", "api.example.com")).status == 403


def test_the_process_starts_again_with_the_last_good_table_after_a_kill(tmp_path: Path) -> None:
    with running_lab(tmp_path / "h") as lab:
        lab.restart(kill=True)
        assert lab.client().ask(get("http://api.example.com/allowed", "api.example.com")).status == 200
        assert lab.control("GET", "/status")["bottles"]["agent-a"]["problem"] is None


def test_a_second_process_on_the_same_home_does_not_start(lab: Harness) -> None:
    finished = subprocess.run(
        [sys.executable, "manage.py", "egress"], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE,
        env={"BOTTLE_HOME": str(lab.home), "EGRESS_PORT": "0", "PATH": "/usr/bin"}, check=False,
    )  # fmt: skip
    assert (finished.returncode, "Another egress process" in finished.stderr) == (2, True)


def test_a_stop_lets_requests_finish(tmp_path: Path) -> None:
    with running_lab(tmp_path / "h") as lab:
        lab.publish("agent-a", [pinned("api.example.com", dlp={"out": False, "in": True})])
        idle, busy = lab.client(), lab.secured("api.example.com")
        busy.send(b"POST /p HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 4\r\n\r\nab")
        eventually(lambda: lab.requests, "the request")
        lab.process.send_signal(signal.SIGTERM)
        assert idle.everything() == b""
        busy.send(b"cd")
        assert busy.answer().json["body"] == "abcd"
        assert lab.process.wait(20) == 0
        assert not list((lab.home / "bottles").glob("*/sockets/*"))


def test_the_usual_tables_are_live(lab: Harness) -> None:
    bottle = lab.control("GET", "/status")["bottles"]["agent-a"]
    assert (bottle["problem"], bottle["loaded_at"] is not None) == (None, True)
    public = lab.control("GET", "/bottles/agent-a/routes")
    assert [route["host"] for route in public["routes"]] == sorted(route["host"] for route in USUAL_ROUTES)
    assert "CANARY" not in str(public)
