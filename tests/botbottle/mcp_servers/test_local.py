"""Managed servers in a real local bottle: started, spoken to, killed, stopped. Real parts only."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import httpx
import pytest
import websockets

from egress.contract.secret_variables import FILE, from_bytes
from tests.support import ROOT
from tests.support.bottle_cli import Bottles
from tests.support.mcp_relay_client import HTTP, WEBSOCKET, speaking
from tests.support.mcp_server_site import Managed, everything, inspector, with_sdk
from tests.support.site import command_of
from tests.support.timeouts import wait_until
from tests.support.wheels import wheel_of

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def two(bottles: Bottles) -> Managed:
    """A bottle with a server that uses the Python SDK, one from npm, and a plain one."""
    managed = Managed(bottles, "two")
    managed.stage("sdk", "sdk_server.py")
    managed.stage("plain", "plain_server.py")
    sdk, mount = with_sdk()
    npm, mounts = everything(image=False)
    plain = {"command": "python3", "args": ["plain_server.py"], "host_path": "plain", "env": {"KEY": "hush"}}
    managed.start({"sdk": sdk, "npm": npm, "plain": plain}, mounts=[mount, *mounts, inspector()])
    return managed


@pytest.mark.parametrize("relay", [HTTP, WEBSOCKET])
async def test_the_sdks_client_lists_and_calls_tools(two: Managed, relay: str) -> None:
    async with speaking(two.socket, "sdk", relay) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == {"add", "where"}
        added = await client.call_tool("add", {"a": 2, "b": 40})
        assert added.content[0].text == "42"
        where = (await client.call_tool("where", {})).content[0].text
    assert where.split()[1:] == ["two", "/workspace/.bot-bottle/servers/sdk/code"]
    async with speaking(two.socket, "npm", relay) as client:
        assert "echo" in {tool.name for tool in (await client.list_tools()).tools}
        assert "hello" in (await client.call_tool("echo", {"message": "hello"})).content[0].text


async def test_the_http_relay_speaks_the_modern_era_for_servers_that_do_not(two: Managed) -> None:
    async with speaking(two.socket, "plain", HTTP, mode="auto") as client:
        assert client.session.protocol_version == "2026-07-28"
        assert "echo" in {tool.name for tool in (await client.list_tools()).tools}
        assert (await client.call_tool("echo", {"a": 1})).content[0].text == '{"a": 1}'


@pytest.mark.clients
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_inspector_lists_and_calls_tools_from_inside(two: Managed, era: str) -> None:
    listed = two.inspect("sdk", "--method", "tools/list", era=era)
    assert {tool["name"] for tool in listed["tools"]} == {"add", "where"}
    wish = ("--method", "tools/call", "--tool-name", "echo", "--tool-args-json", '{"message": "hello"}')
    assert "hello" in two.inspect("npm", *wish, era=era)["content"][0]["text"]


@pytest.mark.clients
def test_the_inspector_lists_and_calls_tools_over_the_websocket(two: Managed) -> None:
    listed = two.inspect_over_websocket("sdk", "--method", "tools/list")
    assert {tool["name"] for tool in listed["tools"]} == {"add", "where"}
    wish = ("--method", "tools/call", "--tool-name", "echo", "--tool-args-json", '{"message": "hello"}')
    assert "hello" in two.inspect_over_websocket("npm", *wish)["content"][0]["text"]


# --- over standard input and output


def connect(
    managed: Managed, name: str, *messages: dict[str, Any], hang_up: bool = True
) -> tuple[int, list[Any], str]:
    """Exit code, what came out, and the problem. We end it once all is answered, or wait until it ends."""
    process = subprocess.Popen(
        [sys.executable, "manage.py", "servers", "connect", managed.slug, name],
        cwd=ROOT, env=managed.bottles.server.environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    with process:
        assert process.stdin and process.stdout and process.stderr
        answers = []
        for message in messages:
            process.stdin.write(json.dumps(message) + "\n\n")
            process.stdin.flush()
            answers.append(json.loads(process.stdout.readline()))
        if hang_up:
            process.stdin.close()
        rest, problem = process.stdout.read(), process.stderr.read()
    assert rest == "", "nothing but protocol"
    return process.returncode, answers, problem


def test_a_program_on_pipes_speaks_with_a_server(two: Managed) -> None:
    long = "é" * 20_000
    ask = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    params = {"name": "echo", "arguments": {"long": long}}
    ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
    code, (said, pong), _ = connect(two, "plain", {**ask, "params": params}, ping)
    assert json.loads(said["result"]["content"][0]["text"]) == {"long": long}
    assert (code, pong["id"], pong["result"]) == (0, 2, {})


def test_what_cannot_be_connected_says_why(two: Managed) -> None:
    code, _, problem = connect(two, "none")
    assert (code, "no MCP server 'none'" in problem) == (1, True), problem


async def test_pipes_are_an_attachment_like_every_other(two: Managed) -> None:
    url = "ws://127.0.0.1:9100/mcp/servers/plain"
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    async with websockets.unix_connect(str(two.socket), url, subprotocols=["mcp"]) as first:
        await first.send(json.dumps(ping))
        await first.recv()
        code, (told,), problem = await asyncio.to_thread(connect, two, "plain", ping, hang_up=False)
    assert told["error"]["data"]["phase"] == "relay_connect"
    assert (code, "4503" in problem) == (1, True), problem


# --- who may


def test_the_agent_reaches_its_servers_from_inside_and_their_secrets_stay_out_of_sight(two: Managed) -> None:
    program = (
        "import json,urllib.request as u;"
        "m={'jsonrpc':'2.0','id':1,'method':'tools/call','params':{'name':'whoami','arguments':{}}};"
        "r=u.Request('http://127.0.0.1:9100/mcp/servers/plain',json.dumps(m).encode(),"
        "{'Content-Type':'application/json'});print(u.urlopen(r,timeout=60).read().decode())"
    )
    said = two.bottles.ok("exec", two.slug, "--", "python3", "-c", program)
    facts = json.loads(json.loads(said)["result"]["content"][0]["text"])
    assert facts["hostname"] == "two" and facts["env"]["KEY"] == "hush"
    assert "hush" not in json.dumps(two.known()), "names of variables are kept, never values"
    assert two.known()["plain"]["env"] == ["KEY"]
    on_the_host = subprocess.run(
        ["ps", "axww", "-o", "args"], capture_output=True, text=True, check=True
    ).stdout
    assert "hush" not in on_the_host


def test_the_proxy_knows_what_a_server_is_handed_before_it_runs(bottles: Bottles) -> None:
    """It is one of the bottle's programs: the agent can look into it."""
    secret = bottles.server.home.parent / "token-of-a-server"
    secret.write_text("shapeless words\n")
    managed = Managed(bottles, "sealed")
    managed.stage("plain", "plain_server.py")
    env = {"KEY": {"from_file": str(secret)}, "PLAIN": "a plain value"}
    managed.start(
        {"plain": {"command": "python3", "args": ["plain_server.py"], "host_path": "plain", "env": env}}
    )
    managed.wait("plain", condition="running")
    told = bottles.server.home / "bottles" / "sealed" / "run" / FILE
    assert from_bytes(told.read_bytes()) == {"shapeless words"}
    bottles.ok("stop", "sealed")
    assert not told.exists()


def test_no_other_bottle_has_a_name_for_them(two: Managed) -> None:
    other = Managed(two.bottles, "other")
    other.start({})
    for name in ("plain", "two/plain", "../two/plain"):
        assert "no MCP server" in str(other.ask(name, "ping")) or "nothing here" in str(
            other.ask(name, "ping")
        )
    assert "two" not in json.dumps(other.ask("plain", "ping"))


@pytest.mark.parametrize(
    ("headers", "path"),
    [
        ({}, "/mcp/servers/plain"),
        ({"X-Bottle-Identity": "two"}, "/mcp/servers/plain"),
        ({"Authorization": "Bearer wrong"}, "/mcp/servers/plain"),
    ],
)
async def test_a_websocket_without_a_proven_bottle_is_refused(two: Managed, headers: dict, path: str) -> None:
    url = f"ws://127.0.0.1:{two.bottles.server.agent_port}{path}"
    with pytest.raises(websockets.exceptions.InvalidStatus) as refused:
        async with websockets.connect(url, additional_headers=headers, subprotocols=["mcp"]):
            pass
    assert refused.value.response.status_code == 403


async def test_only_one_websocket_is_attached_at_a_time(two: Managed) -> None:
    url = "ws://127.0.0.1:9100/mcp/servers/plain"
    ping = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"})
    async with websockets.unix_connect(str(two.socket), url, subprotocols=["mcp"]) as first:
        await first.send(ping)
        assert json.loads(await first.recv())["result"] == {}
        async with websockets.unix_connect(str(two.socket), url, subprotocols=["mcp"]) as second:
            refused = json.loads(await second.recv())["error"]
            with pytest.raises(websockets.exceptions.ConnectionClosedError) as closed:
                await second.recv()
        assert refused["data"]["phase"] == "relay_connect"
        assert closed.value.rcvd.code == 4503
        await first.send(ping)
        assert json.loads(await first.recv())["result"] == {}, "the first goes on"


# --- several at once


async def test_clients_with_the_same_ids_get_their_own_answers(two: Managed) -> None:
    transport = httpx.AsyncHTTPTransport(uds=str(two.socket))

    async def call(number: int) -> str:
        arguments = {"number": number, "seconds": 0.2}
        params = {"name": "slow", "arguments": arguments, "_meta": {"progressToken": 7}}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        headers = {"Accept": "application/json, text/event-stream"}
        answer = await client.post("/mcp/servers/plain", json=message, headers=headers)
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
        assert [event.get("method") for event in events] == ["notifications/progress", None]
        assert events[0]["params"]["progressToken"] == 7
        return events[-1]["result"]["content"][0]["text"]

    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:9100", timeout=60) as client:
        told = await asyncio.gather(*(call(number) for number in range(20)))
    assert [json.loads(text)["number"] for text in told] == list(range(20))


def test_nothing_but_protocol_comes_through(two: Managed) -> None:
    assert two.call("plain", "noisy") == {}
    two.wait("plain", dropped=1)


# --- what goes wrong


def test_one_that_is_killed_comes_back_and_one_that_is_stopped_leaves_the_others(two: Managed) -> None:
    before = two.call("plain", "whoami")["pid"]
    failed = two.call("plain", "crash")
    assert failed["data"]["phase"] == "tool_call"
    two.wait("plain", condition="running", restarts=1, exit_code=137)
    assert two.call("plain", "whoami")["pid"] != before
    assert "going down" in two.state("plain")["stderr"]
    two.bottles.server.manage("servers", "stop", two.slug, "npm")
    assert two.state("npm")["status"] == "stopped"
    assert "operator stopped" in two.ask("npm", "tools/list")["error"]["message"]
    assert two.call("plain", "echo", still=1) == {"still": 1}
    assert two.bottles.ps(two.slug)["state"] == "running"
    two.bottles.server.manage("servers", "start", two.slug, "npm")
    assert two.ask("npm", "tools/list")["result"]["tools"]
    assert ("mcp server stopped", ANY) in two.bottles.audited(two.slug)


def test_a_restarted_web_process_takes_none_with_it(two: Managed) -> None:
    before = two.call("plain", "whoami")["pid"]
    up = two.bottles.server.process.pid
    found = Path(f"/proc/{up}/task/{up}/children").read_text().split()
    (web,) = [int(pid) for pid in found if command_of(int(pid))[-1:] == ["web"]]
    os.kill(web, signal.SIGKILL)
    wait_until(lambda: isinstance(answer_of(two), dict), what="the web process")
    assert two.call("plain", "whoami")["pid"] == before


def answer_of(managed: Managed) -> object:
    try:
        return managed.call("plain", "echo")
    except (httpx.HTTPError, ValueError):
        return None


def test_a_killed_host_process_is_replaced_and_leaves_no_second_server(two: Managed) -> None:
    before = two.call("plain", "whoami")["pid"]
    host = json.loads((two.directory / "run" / "servers.json").read_text())["pid"]
    os.kill(host, signal.SIGKILL)
    assert two.call("plain", "whoami")["pid"] != before
    running = two.bottles.ok("exec", two.slug, "--", "ps", "ax", "-o", "args")
    assert running.count("plain_server.py") == 1


PHASES = {
    "outside": ({"command": "true", "host_path": "/usr/share"}, "session_create", "the allowed roots"),
    "uninstallable": ({"command": "python3", "host_path": "needs"}, "dep_install", "could not be installed"),
    "missing": ({"command": "no-such-program"}, "process_start", "ended with code 127"),
    "silent": ({"command": "sleep", "args": ["60"], "startup_timeout": 2}, "mcp_init", "within 2 s"),
    "no-mcp": ({"command": "echo", "args": ["hi"]}, "mcp_init", "ended with code 0"),
    "old": ({"command": "python3", "args": ["plain_server.py"], "host_path": "plain",
             "env": {"ANSWER_VERSION": "1999-01-01"}}, "mcp_init", "not answered as MCP"),
}  # fmt: skip


def test_each_failure_says_its_phase_and_a_bottle_that_ends_is_final(bottles: Bottles) -> None:
    managed = Managed(bottles, "phases")
    managed.stage("plain", "plain_server.py")
    (managed.stage("needs") / "requirements.txt").write_text("no-such-package-here==1\n")
    good = {"command": "python3", "args": ["plain_server.py"], "host_path": "plain"}
    leaving = {**good, "args": ["plain_server.py"], "env": {"LEAVES_AFTER": "0.3"}}
    failing = {name: entry for name, (entry, _, _) in PHASES.items()}
    managed.start({"good": good, "leaving": leaving, **failing})
    managed.fails_at_runtime("leaving")
    for name, (_, phase, says) in PHASES.items():
        managed.fails(name, phase, says)
        managed.wait(name, phase=phase)
    assert managed.call("good", "echo", a=1) == {"a": 1}, "others' failures are not its own"
    rows = wait_until(lambda: bottles.rows(ROWS, "phases"), what="the rows")
    wait_until(
        lambda: (
            {row["name"]: row["phase"] for row in bottles.rows(ROWS, "phases") if row["name"] != "leaving"}
            == {"good": "", **{name: phase for name, (_, phase, _) in PHASES.items()}}
        ),
        what=f"the rows, not {rows}",
    )
    assert managed.workspace.joinpath(".bot-bottle/servers/good/code/plain_server.py").exists()
    bottles.ok("stop", "phases")
    managed.wait("good", condition="stopped", phase="box_unavailable")
    assert managed.ask("good", "tools/list")["error"]["data"] == {"phase": "box_unavailable"}
    wait_until(lambda: not managed.workspace.joinpath(".bot-bottle").exists(), what="the copies' removal")
    wait_until(
        lambda: {row["condition"] for row in bottles.rows(ROWS, "phases")} == {"stopped"}, what="the rows"
    )


ROWS = (
    "select s.* from supervise_managedserver s join botbottle_bottle b on b.id = s.bottle_id where b.slug = ?"
)


def test_a_python_workspace_gets_its_packages_inside(bottles: Bottles) -> None:
    managed = Managed(bottles, "venv")
    directory = managed.stage("wheels", "plain_server.py")
    wheel_of(directory, "dependency")
    (directory / "requirements.txt").write_text("--no-index\n./dependency-1.0-py3-none-any.whl\n")
    server = directory / "plain_server.py"
    server.write_text("import dependency\n" + server.read_text())
    program = f"{directory}/.venv/bin/python"
    managed.start({"venv": {"command": program, "args": [str(server)], "host_path": "wheels"}})
    facts = managed.call("venv", "whoami")
    assert facts["prefix"] == "/workspace/.bot-bottle/servers/venv/venv"
    assert facts["argv"] == ["/workspace/.bot-bottle/servers/venv/code/plain_server.py"]


def test_a_copy_in_the_home_is_made_anew_at_each_start_and_goes_with_the_server(bottles: Bottles) -> None:
    managed = Managed(bottles, "closed")
    program = managed.stage("closed-plain", "plain_server.py") / "plain_server.py"
    plain = {"command": "python3", "args": ["plain_server.py"], "host_path": "closed-plain"}
    workspace = managed.home.parent / "closed-workspace"
    workspace.mkdir()
    managed.start({"plain": plain}, workspace={"path": str(workspace), "mode": "ro"})
    place = "/home/agent/.bot-bottle/servers/plain"
    assert managed.call("plain", "whoami")["cwd"] == f"{place}/code"
    for version in ("2", "3"):
        program.write_text(program.read_text() + f"# version {version}\n")
        bottles.server.manage("servers", "restart", managed.slug, "plain")
        assert managed.call("plain", "whoami")["cwd"] == f"{place}/code"
        inside = bottles.ok("exec", "-T", managed.slug, "--", "cat", f"{place}/code/plain_server.py")
        assert inside == program.read_text()
    bottles.server.manage("servers", "stop", managed.slug, "plain")
    assert bottles.command("exec", "-T", managed.slug, "--", "ls", place).code != 0


# --- calls that an operator decides


def decide(managed: Managed, verb: str, note: str = "fine") -> None:
    (found,) = wait_until(lambda: pending(managed), what="the card")
    managed.bottles.server.manage("proposals", verb, found, "--note", note)


@pytest.fixture(scope="module")
def asking(bottles: Bottles) -> Managed:
    managed = Managed(bottles, "asking")
    managed.stage("plain", "plain_server.py")
    plain = {"command": "python3", "args": ["plain_server.py"], "host_path": "plain"}
    managed.start({"plain": plain | {"tools": {"*": "ask", "whoami": "allow"}}})
    assert managed.call("plain", "whoami")["hostname"] == "asking"
    return managed


def test_an_approved_call_is_made_and_a_rejected_one_says_why(asking: Managed) -> None:
    with ThreadPoolExecutor(1) as beside:
        called = beside.submit(asking.call, "plain", "echo", a="<b>")
        decide(asking, "approve")
        assert called.result(60) == {"a": "<b>"}
        refused = beside.submit(asking.ask, "plain", "tools/call", name="echo", arguments={"b": 1})
        decide(asking, "reject", "not on a Friday")
        result = refused.result(60)["result"]
    assert result["isError"] and "not on a Friday" in result["content"][0]["text"]


def call_and_leave(managed: Managed, **arguments: Any) -> None:
    """The card is in the queue, and its caller does not wait for it."""
    params = {"name": "echo", "arguments": arguments}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    transport = httpx.HTTPTransport(uds=str(managed.socket))
    with (
        httpx.Client(transport=transport, base_url="http://127.0.0.1:9100", timeout=60) as client,
        client.stream("POST", "/mcp/servers/plain", json=message),
    ):
        wait_until(lambda: pending(managed), what="the card")


def test_a_late_approval_is_good_for_one_call(asking: Managed) -> None:
    call_and_leave(asking, late=1)
    decide(asking, "approve")
    assert asking.call("plain", "echo", late=1) == {"late": 1}
    call_and_leave(asking, late=1)  # the approval is used up: there is a card again
    decide(asking, "reject")


def pending(managed: Managed) -> list[str]:
    return managed.bottles.server.pending(managed.slug)


UNSHOWABLE: list[dict[str, Any]] = [
    {"name": ["echo"], "arguments": {"a": 1}},
    {"arguments": {"a": 1}},
    {"name": "echo", "arguments": ["rm"]},
    {"name": "echo", "arguments": "rm"},
]


async def test_a_call_that_no_card_could_show_is_refused(asking: Managed) -> None:
    url = "ws://127.0.0.1:9100/mcp/servers/plain"
    async with websockets.unix_connect(str(asking.socket), url, subprotocols=["mcp"]) as client:
        for params in UNSHOWABLE:
            assert asking.ask("plain", "tools/call", **params)["error"]["code"] == -32602, params
            message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            await client.send(json.dumps(message))
            answer = json.loads(await client.recv())
            assert (answer["id"], answer["error"]["code"]) == (1, -32602), params
    assert pending(asking) == []


def test_nothing_but_what_the_card_showed_reaches_the_server(asking: Managed) -> None:
    sent = {"name": "params", "arguments": {"a": "b\x00"}, "task": {"ttl": 1}, "more": ["rm"]}
    with ThreadPoolExecutor(1) as beside:
        called = beside.submit(
            asking.ask, "plain", "tools/call", **sent, _meta={"hidden": "rm", "progressToken": "mine"}
        )
        decide(asking, "approve")
        got = json.loads(called.result(60)["result"]["content"][0]["text"])
    token = got.pop("_meta").pop("progressToken")
    assert got == {"name": "params", "arguments": {"a": "b␀"}} and token != "mine"


def test_an_approval_is_not_used_up_by_a_server_that_is_not_there(asking: Managed) -> None:
    call_and_leave(asking, down=1)
    asking.bottles.server.manage("servers", "stop", asking.slug, "plain")
    decide(asking, "approve")
    assert "operator stopped" in asking.call("plain", "echo", down=1)["message"]
    asking.bottles.server.manage("servers", "start", asking.slug, "plain")
    assert asking.call("plain", "echo", down=1) == {"down": 1}
    assert ("call made", "bottle asking") in asking.bottles.audited(asking.slug)


async def test_a_call_over_the_websocket_waits_too(asking: Managed) -> None:
    async with speaking(asking.socket, "plain", WEBSOCKET) as client:
        called = asyncio.create_task(client.call_tool("echo", {"ws": 1}))
        await asyncio.to_thread(decide, asking, "approve")
        assert (await called).content[0].text == '{"ws": 1}'
