"""Managed servers in a container of a real engine: the same as in a local bottle, over the same relays."""

from __future__ import annotations

import json

import pytest
import websockets

from tests.botbottle.mcp_servers.test_limits import check, groups_can_be_made, groups_of, started
from tests.support.bottle_cli import Bottles
from tests.support.docker_images import PYTHON_IMAGE
from tests.support.mcp_relay_client import HTTP, WEBSOCKET, speaking
from tests.support.mcp_server_site import Managed, everything, inspector, with_sdk
from tests.support.timeouts import wait_until

pytestmark = [pytest.mark.process, pytest.mark.docker]
FAILING = {
    "outside": ({"command": "true", "host_path": "/usr/share"}, "session_create"),
    "uninstallable": ({"command": "python3", "host_path": "needs"}, "dep_install"),
    "missing": ({"command": "no-such-program"}, "process_start"),
    "silent": ({"command": "sleep", "args": ["60"], "startup_timeout": 10}, "mcp_init"),
}


@pytest.fixture(scope="module")
def boxed(boxes: Bottles) -> Managed:
    managed = Managed(boxes, "boxed")
    managed.stage("sdk", "sdk_server.py")
    managed.stage("plain", "plain_server.py")
    (managed.stage("needs") / "requirements.txt").write_text("no-such-package-here==1\n")
    managed.workspace.mkdir(parents=True)
    managed.workspace.chmod(0o777)  # where the tests run as root, the bottle does not
    npm, mounts = everything(image=True)
    sdk, mount = with_sdk()
    sdk["env"]["LD_LIBRARY_PATH"] = "/usr/lib:/shared-objects"  # the image has an interpreter of its own
    plain = {
        "command": "python3",
        "args": ["plain_server.py"],
        "host_path": "plain",
        "env": {"K": "hush"},
    }
    for entry in (sdk, npm, plain):
        entry["startup_timeout"] = 180  # many start at once
    failing = {name: entry for name, (entry, _) in FAILING.items()}
    failing["leaving"] = {
        **plain,
        "args": ["plain_server.py"],
        "env": {"LEAVES_AFTER": "0.3"},
    }
    managed.start(
        {"sdk": sdk, "npm": npm, "plain": plain, **failing},
        backend="docker",
        image=PYTHON_IMAGE,
        mounts=[mount, *mounts, inspector()],
    )
    return managed


@pytest.mark.parametrize("relay", [HTTP, WEBSOCKET])
async def test_the_sdks_client_lists_and_calls_tools(boxed: Managed, relay: str) -> None:
    boxed.wait("sdk", condition="running")
    async with speaking(boxed.socket, "sdk", relay) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == {"add", "where"}
        assert (await client.call_tool("add", {"a": 2, "b": 40})).content[0].text == "42"
        where = (await client.call_tool("where", {})).content[0].text
    assert where.split()[1:] == ["boxed", "/workspace/.bot-bottle/servers/sdk/code"]
    async with speaking(boxed.socket, "npm", relay) as client:
        assert "echo" in {tool.name for tool in (await client.list_tools()).tools}
        assert "hello" in (await client.call_tool("echo", {"message": "hello"})).content[0].text


@pytest.mark.clients
def test_the_inspector_lists_tools_from_inside(boxed: Managed) -> None:
    """In one era, over one relay: all of them are tried in a local bottle."""
    listed = boxed.inspect("sdk", "--method", "tools/list", libraries="/shared-objects")
    assert {tool["name"] for tool in listed["tools"]} == {"add", "where"}


def test_one_that_is_killed_comes_back_and_one_that_is_stopped_leaves_the_others(boxed: Managed) -> None:
    boxed.wait("plain", condition="running")
    before = boxed.call("plain", "whoami")
    assert before["env"]["K"] == "hush" and "hush" not in json.dumps(boxed.known())
    assert boxed.call("plain", "crash")["data"]["phase"] == "tool_call"
    boxed.wait("plain", condition="running", restarts=1, exit_code=137)
    assert boxed.call("plain", "whoami")["pid"] != before["pid"]
    boxed.bottles.server.manage("servers", "stop", boxed.slug, "npm")
    assert boxed.call("plain", "echo", still=1) == {"still": 1}
    assert "operator stopped" in boxed.ask("npm", "tools/list")["error"]["message"]
    left = boxed.bottles.ok("exec", boxed.slug, "--", "ps", "-o", "args")
    assert "server-everything" not in left and "plain_server.py" in left
    boxed.bottles.server.manage("servers", "start", boxed.slug, "npm")
    assert boxed.ask("npm", "tools/list")["result"]["tools"]


@pytest.mark.parametrize("name", FAILING)
def test_each_failure_says_its_phase(boxed: Managed, name: str) -> None:
    boxed.fails(name, FAILING[name][1])


def test_one_that_leaves_by_itself_fails_at_runtime(boxed: Managed) -> None:
    boxed.fails_at_runtime("leaving")


async def test_a_second_websocket_fails_at_the_relay(boxed: Managed) -> None:
    url = "ws://127.0.0.1:9100/mcp/servers/plain"
    ping = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"})
    async with websockets.unix_connect(str(boxed.socket), url, subprotocols=["mcp"]) as first:
        await first.send(ping)  # once it is answered, it is attached
        assert json.loads(await first.recv())["result"] == {}
        async with websockets.unix_connect(str(boxed.socket), url, subprotocols=["mcp"]) as second:
            refused = json.loads(await second.recv())["error"]
        assert refused["data"]["phase"] == "relay_connect"
        await first.send(ping)
        assert json.loads(await first.recv())["result"] == {}


def test_a_bottle_that_is_stopped_is_final(boxed: Managed) -> None:
    assert boxed.workspace.joinpath(".bot-bottle/servers/plain/code").exists()
    boxed.bottles.ok("stop", boxed.slug)
    boxed.wait("plain", condition="stopped", phase="box_unavailable")
    assert boxed.ask("plain", "tools/list")["error"]["data"] == {"phase": "box_unavailable"}
    wait_until(lambda: not boxed.workspace.joinpath(".bot-bottle").exists(), what="the copies' removal")
    boxed.bottles.ok("start", boxed.slug)
    assert boxed.call("plain", "echo", again=1) == {"again": 1}, "a new start has them again"


def test_limits_hold_with_all_that_a_server_forks(boxes: Bottles) -> None:
    managed = started(boxes, "greedy-box", backend="docker", image=PYTHON_IMAGE)
    check(managed, together=groups_can_be_made())
    boxes.ok("stop", "greedy-box")
    wait_until(lambda: groups_of("greedy-box") == [], what="the groups' removal")
