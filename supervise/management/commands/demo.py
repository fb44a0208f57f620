"""manage.py demo: an agent in a real bottle is refused, asks and waits; once approved, its retry succeeds."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from botbottle import backends
from botbottle.backends.base import Unavailable
from botbottle.demo import agent as scripted_agent
from botbottle.demo.internet import Internet, Site, small_internet
from supervise.cli.base import add_json, json_line

SLUG = "demo"
HOST, PAGE = "packages.example.com", "/simple/left-pad/"
# The variables of the caller that are passed on. Settings are not: the demo must not use the operator's
# database.
KEPT_VARIABLES = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "VIRTUAL_ENV",
    "PYTHONPATH", "LD_LIBRARY_PATH",
)  # fmt: skip
START_SECONDS = 60.0
PENDING_SECONDS = 60.0
STOP_SECONDS = 20.0
MANIFEST = """\
backend: local
agent: none
workspace:
  path: {workspace}
  mode: ro
"""


class Command(BaseCommand):
    help = "Show the whole loop in a minute, with a real bottle and everything on loopback."
    requires_system_checks: list[str] = []
    _as_json = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--auto", action="store_true", help="approve without a person, for tests")
        add_json(parser, "print each step as one line of JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        self._as_json = options["json"]
        try:
            self._show(auto=options["auto"])
        except CommandError as error:
            self._print({"step": "ended", "succeeded": False, "problem": str(error)})
            raise
        self._print({"step": "ended", "succeeded": True, "problem": ""})

    def _show(self, *, auto: bool) -> None:
        root = Path(settings.BOTTLE_HOME) / "demo"  # a separate home, so that the operator's is not touched
        try:
            backends.get("local", root).available()
        except Unavailable as error:
            raise CommandError(str(error)) from error
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(mode=0o700)
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, root, ignore_errors=True)
            stack.enter_context(_stoppable())
            internet = stack.enter_context(small_internet(root, {HOST: PackageIndex}))
            server = stack.enter_context(_Server.start(root, internet))
            succeeded = self._walk(server, auto=auto)
        if not succeeded:
            raise CommandError("The agent did not get through. The lines above say where it stopped.")

    def _walk(self, server: _Server, *, auto: bool) -> bool:
        self._print({"step": "serving", "console": server.console_url})
        step: dict[str, Any] = {}
        with server.agent(f"https://{HOST}{PAGE}") as lines:
            for step in lines:
                self._print(step)
                if step["step"] != "refused":
                    continue
                self._print({"step": "waiting", "console": server.console_url, **server.credentials})
                if auto:
                    self._print({"step": "approving"})
                    server.approve()
        return step.get("step") == "tried again" and step["status"] == 200

    def _print(self, step: dict[str, Any]) -> None:
        for line in [json_line(step)] if self._as_json else _words(step):
            self.stdout.write(line)
        self.stdout.flush()


def _words(step: dict[str, Any]) -> Iterator[str]:
    match step["step"]:
        case "serving":
            yield f"bot-bottle runs. Console: {step['console']}"
        case "tried":
            yield f"The agent in its bottle: GET {step['url']} → {step['status']}"
        case "refused":
            yield f"  {step['message']}"
            yield f"The agent asks over MCP: {step['ask']['tool']} {json.dumps(_short(step['ask']))}"
        case "waiting":
            sign_in = f"username: {step['username']}, password: {step['password']}"
            yield f"It waits. Open {step['console']} and sign in: {sign_in}"
            yield f"Open the card about {HOST}, press Approve…, then “Approve as asked”."
        case "approving":
            yield "Nobody has to click: --auto approves it."
        case "answered" if step["status"] == "pending":
            yield "Nobody decided yet; the agent asks again and keeps waiting."
        case "answered":
            version = f", live as table version {step['live_version']}" if step["live_version"] else ""
            yield f"The waiting call returns: {step['status']}{version}"
        case "tried again":
            yield f"The agent tries again: GET {step['url']} → {step['status']} {step['body']}"


class PackageIndex(Site):
    """The only site on the demo's internet."""

    def do_GET(self) -> None:
        if self.path == PAGE:
            self.answer(200, b"left-pad 1.3.0 is yours\n")
        else:
            self.answer(404, b"nothing here\n")


class _Server:
    """`manage.py up` in the demo's own home."""

    def __init__(self, root: Path, environment: dict[str, str]) -> None:
        self._root, self._home, self._environment = root, Path(environment["BOTTLE_HOME"]), environment
        self.console_url = ""

    @classmethod
    @contextmanager
    def start(cls, root: Path, internet: Internet) -> Iterator[_Server]:
        environment = {
            **{name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ},
            "BOTTLE_HOME": str(root / "home"),
            "EGRESS_UPSTREAM_PROXY": internet.proxy_url,
            "EGRESS_UPSTREAM_CA": str(internet.authority),
            **dict.fromkeys(("SUPERVISE_PORT", "CONSOLE_PORT", "EGRESS_PORT"), "0"),
        }
        server = cls(root, environment)
        with server._log.open("w") as log:
            process = subprocess.Popen(server._command("up"), env=environment, stdout=log, stderr=log)  # noqa: S603
        try:
            server._wait(process)
            yield server
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(STOP_SECONDS)

    @property
    def _log(self) -> Path:
        return self._root / "server.log"

    @property
    def credentials(self) -> dict[str, str]:
        lines = (self._home / "operator.txt").read_text().splitlines()
        return dict(line.split(": ", 1) for line in lines)

    @contextmanager
    def agent(self, url: str) -> Iterator[Iterator[dict[str, Any]]]:
        """Yield the agent's steps as it reports them, from a bottle that is stopped at the end."""
        workspace = self._root / "workspace"
        workspace.mkdir()
        shutil.copy(str(scripted_agent.__file__), workspace / "agent.py")
        manifest = self._home / "bottles" / f"{SLUG}.yaml"
        manifest.parent.mkdir(exist_ok=True)
        manifest.write_text(MANIFEST.format(workspace=json.dumps(str(workspace))))
        python = str(Path(sys.base_prefix) / "bin" / "python3")
        command = self._command("bottle", "run", SLUG, "--", python, "-I", "/workspace/agent.py", url)
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and script
            command, env=self._environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )
        try:
            yield (json.loads(line) for line in process.stdout or ())
        finally:
            process.terminate()
            process.wait(STOP_SECONDS)

    def approve(self) -> None:
        deadline = time.monotonic() + PENDING_SECONDS
        while time.monotonic() < deadline:
            asked = of_the_demo(json.loads(self._manage("proposals", "list", "--json")))
            if asked:
                self._manage("proposals", "approve", asked, "--note", "Fine for the demo.")
                return
            time.sleep(0.1)
        raise CommandError("The agent's ask did not arrive in the queue.")

    def _manage(self, *arguments: str) -> str:
        finished = subprocess.run(  # noqa: S603 - our own interpreter and script
            self._command(*arguments), env=self._environment, capture_output=True, text=True, check=False
        )
        if finished.returncode != 0:
            raise CommandError(f"manage.py {arguments[0]} failed: {finished.stderr.strip()}")
        return finished.stdout

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, str(settings.BASE_DIR / "manage.py"), *arguments]

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            for line in self._log.read_text().splitlines():
                if line.startswith("console "):
                    self.console_url = line.split()[1]
                    return
            time.sleep(0.1)
        raise CommandError(f"bot-bottle did not start:\n{self._log.read_text()[-2000:]}")


def of_the_demo(listed: list[dict[str, Any]]) -> str | None:
    """The one proposal that may be approved without a person."""
    return next((str(line["id"]) for line in listed if (line["bottle"], line["host"]) == (SLUG, HOST)), None)


@contextmanager
def _stoppable() -> Iterator[None]:
    """Make SIGTERM unwind like Ctrl-C, so that nothing is left behind."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield
    except KeyboardInterrupt:
        raise CommandError("stopped") from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _short(ask: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in ask["arguments"].items() if key != "justification"}
