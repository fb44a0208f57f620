"""A running bot-bottle with a bottle whose manifest names managed servers, and what to ask of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import httpx
import yaml

from botbottle.demo.internet import Site
from tests.support import PROGRAMS, ROOT
from tests.support.bottle_cli import Bottles
from tests.support.requirements import require
from tests.support.timeouts import wait_until
from tests.support.wheels import wheel_of

INDEX = "index.example.com"
WHEEL = "dependency-1.0-py3-none-any.whl"
NPM = Path(os.environ.get("BOTTLE_SERVERS_DIR", ROOT / ".cache" / "managed")) / "node_modules"
EVERYTHING = "@modelcontextprotocol/server-everything/dist/index.js"
LIBRARIES = Path("/usr/lib") / f"{os.uname().machine}-linux-gnu"
_ids = iter(range(1, 10**9))


def node() -> Path:
    found = shutil.which("node")
    require(
        found and (NPM / EVERYTHING).is_file(),
        "the MCP server from npm",
        "tests/botbottle/mcp_servers/npm/install",
    )
    return Path(str(found)).resolve()


def everything(image: bool) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """The npm server's entry and the mounts it needs; an image without Node gets the host's libraries too."""
    program, mounts = node(), [{"path": str(NPM.parent), "target": "/npm"}]
    server: dict[str, Any] = {"command": str(program), "args": [f"/npm/node_modules/{EVERYTHING}", "stdio"]}
    if image:
        mounts += [
            {"path": str(program), "target": "/node"},
            {"path": str(LIBRARIES), "target": "/shared-objects"},
        ]
        server |= {"command": "/node", "env": {"LD_LIBRARY_PATH": "/shared-objects"}}
    return server, mounts


def with_sdk() -> tuple[dict[str, Any], dict[str, str]]:
    """The server that uses the Python SDK, staged; the SDK itself is mounted."""
    packages = sysconfig.get_paths()["purelib"]
    env = {"PYTHONPATH": "/sdk", "PYTHONDONTWRITEBYTECODE": "1"}
    server = {"command": "python3", "args": ["sdk_server.py"], "host_path": "sdk", "env": env}
    return server, {"path": packages, "target": "/sdk"}


def inspector() -> dict[str, str]:
    """The mount that has the MCP Inspector, which runs in the bottle: there it reaches nothing else."""
    folder = Path(os.environ.get("BOTTLE_NODE_DIR") or ROOT / ".cache" / "clients")
    found = (folder / "node_modules" / ".bin" / "mcp-inspector").exists()
    require(found, "the MCP Inspector", "tests/clients/install")
    return {"path": str(folder), "target": "/clients"}


class PackageIndex(Site):
    """A package index of one package."""

    files: ClassVar[dict[str, bytes]] = {}
    fetched: ClassVar[list[str]] = []

    @classmethod
    def make(cls, directory: Path) -> None:
        cls.files["/simple/dependency/"] = f'<a href="/simple/{WHEEL}">{WHEEL}</a>'.encode()
        cls.files[f"/simple/{WHEEL}"] = wheel_of(directory, "dependency").read_bytes()

    def do_GET(self) -> None:
        self.fetched.append(self.path)
        if self.path in self.files:
            self.answer(200, self.files[self.path], "text/html")
        else:
            self.answer(404, b"")


@dataclass
class Managed:
    bottles: Bottles
    slug: str

    @property
    def home(self) -> Path:
        return self.bottles.server.home

    @property
    def directory(self) -> Path:
        return self.home / "bottles" / self.slug

    @property
    def socket(self) -> Path:
        return self.directory / "sockets" / "agent.sock"

    @property
    def workspace(self) -> Path:
        return self.directory / "workspace"

    def stage(self, name: str, *files: str) -> Path:
        """Files of this directory where the manifest finds them by a relative path."""
        directory = self.home / "bottles" / name
        directory.mkdir(exist_ok=True)
        for file in files:
            shutil.copy(PROGRAMS / file, directory)
        return directory

    def start(self, servers: dict[str, Any], **more: Any) -> None:
        manifest = {"backend": "local", "mcp_servers": servers, "command": ["sleep", "3600"], **more}
        self.bottles.manifest(self.slug, yaml.safe_dump(manifest))
        self.bottles.ok("start", self.slug)

    def state(self, name: str) -> dict[str, Any]:
        lines = json.loads(self.bottles.server.manage("servers", "list", self.slug, "--json"))
        found: dict[str, Any] = next(line for line in lines if line["name"] == name)
        return found

    def wait(self, name: str, **facts: Any) -> dict[str, Any]:
        def holds() -> dict[str, Any] | None:
            state = self.known().get(name, {})
            return state if all(state.get(key) == value for key, value in facts.items()) else None

        try:
            found: dict[str, Any] = wait_until(holds, seconds=180, what=f"{name}: {facts}")
        except AssertionError as error:
            raise AssertionError(f"{error}, but {self.known().get(name)}") from error
        return found

    def known(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.directory / "run" / "servers.json").read_text())[
                "servers"
            ]
        except (OSError, ValueError):
            return {}
        return found

    def ask(self, name: str, method: str, /, **params: Any) -> dict[str, Any]:
        """One message by the HTTP relay, as JSON."""
        message = {"jsonrpc": "2.0", "id": next(_ids), "method": method, "params": params}
        headers = {"Accept": "application/json"}
        transport = httpx.HTTPTransport(uds=str(self.socket))
        with httpx.Client(transport=transport, base_url="http://127.0.0.1:9100", timeout=240) as client:
            answer: dict[str, Any] = client.post(f"/mcp/servers/{name}", json=message, headers=headers).json()
        return answer

    def fails_at_runtime(self, name: str) -> None:
        """A server that leaves by itself: its phase is told to the operator and to who calls meanwhile."""
        self.wait(name, phase="runtime", exit_code=3, condition="waiting")
        self.fails(name, "runtime")

    def fails(self, name: str, phase: str, says: str = "") -> None:
        """Who calls is told so. Who calls while it is tried again may be told how far that is."""
        told: dict[str, Any] = {}

        def is_told() -> bool:
            nonlocal told
            told = self.ask(name, "tools/list").get("error") or {}
            return told.get("data") == {"phase": phase} and says in told["message"]

        try:
            wait_until(is_told, seconds=180, what=f"{name}: {phase}")
        except AssertionError as error:
            raise AssertionError(f"{error}, but {told}, {self.known().get(name)}") from error

    def inspect(self, name: str, *wish: str, era: str = "legacy", libraries: str = "") -> dict[str, Any]:
        """What MCP Inspector's command line finds, run where the agent runs."""
        cpu = {"x86_64": "x64", "aarch64": "arm64"}[os.uname().machine]
        modules = "/clients/node_modules"
        words = ["env", *([f"LD_LIBRARY_PATH={libraries}"] if libraries else [])]
        words += [f"{modules}/node-linux-{cpu}/bin/node", f"{modules}/.bin/mcp-inspector", "--cli"]
        words += ["--server-url", f"http://127.0.0.1:9100/mcp/servers/{name}", "--transport", "http"]
        words += ["--stored-auth-only", "--protocol-era", era, "--format", "json", *wish]
        found: dict[str, Any] = json.loads(self.bottles.ok("exec", self.slug, "--", *words))["result"]
        return found

    def inspect_over_websocket(self, name: str, *wish: str) -> dict[str, Any]:
        """What MCP Inspector finds that starts `manage.py servers connect`: alone, without any network."""
        folder = Path(inspector()["path"]) / "node_modules"
        cpu = {"x86_64": "x64", "aarch64": "arm64"}[os.uname().machine]
        variables = [f"{key}={value}" for key, value in self.bottles.server.environment.items()]
        words = ["unshare", "--map-root-user", "--net"]
        words += [f"{folder}/node-linux-{cpu}/bin/node", f"{folder}/.bin/mcp-inspector", "--cli", *wish]
        words += ["--format", "json", "--", "env", *variables, sys.executable, str(ROOT / "manage.py")]
        words += ["servers", "connect", self.slug, name]
        ran = subprocess.run(words, cwd=self.home, capture_output=True, text=True, timeout=120, check=False)
        assert ran.returncode == 0, ran.stderr + ran.stdout
        found: dict[str, Any] = json.loads(ran.stdout)["result"]
        return found

    def call(self, name: str, tool: str, /, **arguments: Any) -> Any:
        answer = self.ask(name, "tools/call", name=tool, arguments=arguments)
        return json.loads(answer["result"]["content"][0]["text"]) if "result" in answer else answer["error"]
