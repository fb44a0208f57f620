"""A running server and its clients on an island: a namespace with loopback and nothing else, clean
environments, throwaway homes. This is the outer half;
`programs/namespace_server.py` is the half that runs there."""

import json
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import PROGRAMS
from tests.support.forkserver import Warm
from tests.support.server import pending, prepare
from tests.support.timeouts import PATIENCE

PROJECT = Path(__file__).parents[2]
HERE = PROJECT / "tests" / "clients"
MANAGE = (sys.executable, str(PROJECT / "manage.py"))
UNSHARE = ("unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child")
QUIET = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DO_NOT_TRACK": "1",
    "NO_COLOR": "1",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "npm_config_fetch_retries": "0",  # there is no registry here, and nobody needs one
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
}


@dataclass(frozen=True)
class Bottle:
    url: str
    token: str

    @property
    def authorization(self) -> str:
        return f"Bearer {self.token}"


@dataclass(frozen=True)
class Finished:
    """What a client command did; `code` is None when its time was up."""

    code: int | None
    out: str
    err: str

    @property
    def said(self) -> str:
        return re.sub(r"\x1b\[[\d;]*m", "", f"{self.out}\n{self.err}\n(exit code {self.code})")


class Clients:
    """Where the programs of the pinned npm packages are. Their install scripts never ran, so these are the
    platform's own files and not the wrappers."""

    def __init__(self, modules: Path) -> None:
        cpu = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), "unsupported")
        self.modules = modules
        self.node = str(modules / f"node-linux-{cpu}" / "bin" / "node")
        self.claude = str(modules / "@anthropic-ai" / f"claude-code-linux-{cpu}" / "claude")
        plain_cpu = f"opencode-linux-{cpu}" + ("-baseline" if cpu == "x64" else "")
        self.opencode = str(modules / plain_cpu / "bin" / "opencode")

    def script(self, name: str) -> str:
        return str(self.modules / ".bin" / name)


class Island:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = root / "server.log"
        self.env = {
            "PATH": QUIET["PATH"],
            "LANG": QUIET["LANG"],
            "HOME": str(root),
            "BOTTLE_HOME": str(root / "bottle-home"),
            "SUPERVISE_PORT": "0",
            "CONSOLE_PORT": "0",
        }
        self.server_home = Path(self.env["BOTTLE_HOME"])
        self.server_home.mkdir(mode=0o700)
        prepare(self.server_home)
        self._commands = Warm(self.env)
        self.process = subprocess.Popen(
            [*UNSHARE, sys.executable, str(PROGRAMS / "namespace_server.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            self._ask(self._plan())
            bottle = self.manage("bottle", "create", "island")
        except BaseException:
            self.close()
            raise
        self.bottle = Bottle(bottle["mcp_url"], bottle["token"])

    def _plan(self) -> dict[str, Any]:
        return {
            "server": [*MANAGE, "up"],
            "env": self.env,
            "cwd": str(PROJECT),
            "log": str(self.log),
        }

    def manage(self, *arguments: str) -> Any:
        """A management command as the operator runs it: beside the server, on the same database."""
        finished = self._commands.run([*arguments, "--json"])
        assert finished.returncode == 0, finished.stderr
        return json.loads(finished.stdout)

    def requests(self) -> list[dict[str, Any]]:
        """The server's own log of what it was asked: one JSON line per request."""
        whole, _, _unfinished = self.log.read_text(errors="replace").rpartition("\n")
        lines = whole.splitlines()
        return [entry for line in lines if line.startswith("{") and "path" in (entry := json.loads(line))]

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"problem": "the namespace ended"}
        if problem := answer.get("problem"):
            server = self.log.read_text(errors="replace")[-4000:] if self.log.exists() else "(no log)"
            raise AssertionError(f"{problem}\nThe server said:\n{server}")
        return answer

    def run(
        self,
        *argv: str,
        home: Path,
        env: dict[str, str] | None = None,
        feed: str = "",
        until: str = "",
        timeout: float = 2 * PATIENCE,
    ) -> Finished:
        """Runs one client command, in `home/work`. With `until`, stdin stays open and the command is ended as
        soon as a line of its output has these words."""
        work = home / "work"
        work.mkdir(exist_ok=True)
        environment = {**QUIET, "HOME": str(home), **(env or {})}
        job = {
            "argv": argv,
            "env": environment,
            "cwd": str(work),
            "input": feed,
            "until": until,
            "timeout": timeout,
        }
        return Finished(**self._ask(job))

    def pending(self) -> list[str]:
        """Which proposals wait, for polling."""
        return pending(self.server_home, "island")

    def close(self) -> None:
        self._commands.close()
        assert self.process.stdin
        self.process.stdin.close()
        try:
            self.process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout
        self.process.stdout.close()
