"""Bottles from the first start to the end, with every part killed on the way. Real parts only."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support import ROOT
from tests.support.bottle_cli import HEALTH, Bottles, family, is_gone
from tests.support.requirements import require
from tests.support.server import RunningServer
from tests.support.site import command_of, post_form
from tests.support.timeouts import PATIENCE, wait_until

pytestmark = pytest.mark.process
PYTHON = str(Path(sys.base_prefix) / "bin" / "python3")


@pytest.fixture(scope="module")
def bottles(server: RunningServer) -> Iterator[Bottles]:
    require(shutil.which("bwrap"), "bubblewrap", "apt-get install bubblewrap")
    made = Bottles(server)
    yield made
    directory = server.home / "bottles"
    for line in json.loads(made.ok("ps", "--json")):
        if (directory / f"{line['slug']}.yaml").exists():  # all that have a manifest, and no others
            made.ok("delete", line["slug"])
    assert processes_about(directory) == [], "nothing is left behind"


def processes_about(directory: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and any(str(directory) in word for word in command_of(int(entry.name))):
            found.append(int(entry.name))
    return found


# --- in the foreground


def test_run_gives_the_agents_output_and_exit_code_and_is_in_the_audit_record(bottles: Bottles) -> None:
    bottles.manifest("front")
    for code in (42, 43, 44):  # the long way, then twice the quick one
        ran = bottles.command("run", "front", "--", "sh", "-c", f"echo hello; echo oops >&2; exit {code}")
        assert (ran.code, ran.output, ran.error) == (code, "hello\n", "oops\n")
        wait_until(lambda code=code: bottles.row("front")["exit_code"] == code, what="the row")
        assert bottles.row("front")["state"] == "stopped"
    bottles.ok("ps")
    audited = bottles.audited("front")
    assert [action for action, _ in audited] == ["bottle created", *["bottle started", "bottle stopped"] * 3]
    assert {who for action, who in audited if action == "bottle started"} == {audited[0][1]}


def test_a_fresh_plan_needs_no_django(bottles: Bottles) -> None:
    bottles.manifest("quick")
    times = {"PYTHONPROFILEIMPORTTIME": "1"}
    first, second = (bottles.command("run", "quick", "--", "true", **times) for _ in range(2))
    assert (first.code, second.code) == (0, 0)
    assert "django.core" in first.error
    assert not [name for name in ("django", "yaml", "cryptography", "asyncio") if name in second.error]
    bottles.manifest("quick", "backend: local\nlimits: {pids: 64}\n")
    assert "django.core" in bottles.command("run", "quick", "--", "true", **times).error, "the plan was old"


def test_a_foreground_run_that_is_killed_leaves_nothing_and_ps_says_so(bottles: Bottles) -> None:
    bottles.manifest("killed")
    process = subprocess.Popen(
        [sys.executable, "manage.py", "bottle", "run", "killed", "--", "sleep", "1000"],
        cwd=ROOT, env=bottles.environment, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_until(lambda: bottles.ps("killed")["state"] == "running", what="the run")
    except AssertionError:
        process.kill()
        process.wait()
        raise
    everybody = family(process.pid)
    assert len(everybody) > 2
    process.kill()
    process.wait()
    wait_until(lambda: all(is_gone(pid) for pid in everybody), what="the sandbox's end")
    assert bottles.ps("killed")["state"] == "stopped"


# --- in the background


def test_a_bottle_is_started_used_looked_at_and_stopped(bottles: Bottles) -> None:
    slug = bottles.started("daily", "sh", "-c", "echo \x1b[31mred\x1b[0m; exec sleep 1000")
    assert bottles.ps(slug)["state"] == "running"
    assert bottles.command("exec", slug, "--", "sh", "-c", "echo $HOSTNAME$(hostname); exit 7").code == 7
    assert "ok" in bottles.ok("exec", slug, "--", PYTHON, "-c", HEALTH), "the agent plane answers inside"
    assert bottles.ok("logs", slug) == "red\n"
    assert "\x1b[31mred" in bottles.ok("logs", "--raw", slug)
    again = bottles.command("start", slug)
    assert (again.code, "runs already" in again.error) == (1, True)
    assert bottles.command("run", slug, "--", "true").code != 0
    assert f"{slug} is stopped" in bottles.ok("stop", slug)
    assert "is stopped" in bottles.ok("stop", slug), "twice is fine"
    refused = bottles.command("exec", slug, "--", "true")
    assert refused.code == 1 and refused.error.strip()
    assert bottles.ok("logs", slug) == "red\n", "logs are kept"
    happened = [action for action, _ in bottles.audited(slug)]
    assert happened.count("bottle started") == happened.count("bottle stopped") == 1
    assert happened.count("bottle used") == 2


def test_a_command_that_ends_by_itself_is_noticed_with_its_exit_code(bottles: Bottles) -> None:
    bottles.manifest("short")
    bottles.ok("start", "short", "--", "sh", "-c", "exit 3")
    wait_until(
        lambda: (bottles.row("short")["state"], bottles.row("short")["exit_code"]) == ("stopped", 3),
        what="the caretaker's notice",
    )


ASK = """
import os, urllib.request
print(sorted(os.listdir("/run/bot-bottle/sockets")))
for url in ("http://127.0.0.1:9100/health", "http://supervise/health"):
    try:
        print(urllib.request.urlopen(url).read().decode())
    except OSError as error:
        print(getattr(error, "status", "nobody"))
"""


def test_a_bottle_with_supervise_false_has_nobody_to_ask_until_its_manifest_says_so(bottles: Bottles) -> None:
    bottles.manifest("mute", "supervise: false\n")
    for _ in ("the long way", "the quick way"):
        ran = bottles.command("run", "mute", "--", PYTHON, "-c", ASK)
        assert (ran.code, ran.output.split("\n")) == (0, ["['proxy.sock']", "nobody", "403", ""]), ran.error
    token = json.loads(bottles.ok("token", "mute", "--json"))["token"]
    asked = httpx.post(
        bottles.server.mcp_url, headers={"Authorization": f"Bearer {token}"}, json={}, timeout=60
    )
    assert asked.status_code == 403
    assert "supervise: false" in asked.text
    bottles.manifest("mute")
    ran = bottles.command("run", "mute", "--", PYTHON, "-c", ASK)
    assert ran.output.split("\n") == ["['agent.sock', 'proxy.sock']", "ok", "ok", ""], ran.error


def test_the_first_routes_come_from_the_manifest_and_never_again(bottles: Bottles) -> None:
    text = "routes: [{host: api.example.com, path_allowlist: [/v1]}]\ngate_hosts: [files.example.com]\n"
    bottles.manifest("routed", text)
    allowlist = ("cat", "/etc/bot-bottle/current-config/allowlist")
    assert bottles.command("run", "routed", "--", *allowlist).output == "api.example.com\n"
    versions = "select author, version from egress_routetableversion v join botbottle_bottle b"
    versions += " on b.id = v.bottle_id where b.slug = 'routed' order by version"
    assert [row["author"] for row in bottles.rows(versions)][1:] == ["manifest"]
    bottles.manifest("routed", text.replace("api.", "other."))
    assert bottles.command("run", "routed", "--", *allowlist).output == "api.example.com\n"
    assert len(bottles.rows(versions)) == 2


def test_rm_keeps_the_record_and_the_workspace_and_delete_ends_the_record(bottles: Bottles) -> None:
    slug = bottles.started("removed", "sleep", "1000")
    held = family(bottles.supervisor(slug))
    bottles.ok("exec", slug, "--", "sh", "-c", "echo kept > /workspace/file")
    bottles.ok("rm", slug)
    assert all(is_gone(pid) for pid in held)
    assert bottles.ps(slug)["state"] == "stopped"
    workspace = bottles.server.home / "bottles" / slug / "workspace" / "file"
    assert workspace.read_text() == "kept\n"
    bottles.ok("start", slug, "--", "sleep", "1000")
    held = family(bottles.supervisor(slug))
    bottles.ok("delete", slug)
    assert all(is_gone(pid) for pid in held)
    assert slug not in bottles.ok("ps")
    assert workspace.read_text() == "kept\n"
    assert bottles.audited(slug)[-1][0] == "bottle deleted"


# --- what goes wrong


def test_a_start_that_fails_says_why_and_the_record_keeps_it(bottles: Bottles) -> None:
    bottles.manifest("broken")
    bottles.ok("run", "broken", "--", "true")
    for text, says in (
        ("backend: podman\n", "backend"),
        ("backend: smolmachines\nimage: /nowhere\n", "smolvm"),
        ("env: {KEY: {from_env: NO_SUCH_VARIABLE}}\n", "NO_SUCH_VARIABLE"),
    ):
        bottles.manifest("broken", text)
        for verb in ("start", "run"):
            refused = bottles.command(verb, "broken")
            assert refused.code == 1
            assert says in refused.error and "Traceback" not in refused.error, refused.error
        line = bottles.ps("broken")
        assert line["state"] == "stopped"
        assert line["problem"] and says in line["problem"], line
    bottles.manifest("broken")
    bottles.ok("run", "broken", "--", "true")
    assert bottles.ps("broken")["problem"] == ""


# --- what is killed


def test_a_killed_web_process_takes_no_bottle_with_it(bottles: Bottles) -> None:
    slug = bottles.started("web-dies", "sleep", "1000")
    (web,) = children(bottles.server, "web")
    os.kill(web, signal.SIGKILL)
    wait_until(lambda: children(bottles.server, "web") not in ([], [web]), what="the web process's restart")
    assert bottles.ps(slug)["state"] == "running"
    wait_until(
        lambda: "ok" in bottles.command("exec", slug, "--", PYTHON, "-c", HEALTH).output, what="the answer"
    )
    assert [action for action, _ in bottles.audited(slug)].count("bottle started") == 1
    bottles.ok("delete", slug)


def test_a_killed_egress_process_comes_back_for_the_bottle_that_runs(bottles: Bottles) -> None:
    slug = bottles.started("egress-dies", "sleep", "1000")
    (egress,) = children(bottles.server, "egress")
    os.kill(egress, signal.SIGKILL)
    wait_until(lambda: children(bottles.server, "egress") not in ([], [egress]), what="the restart")
    wait_until(
        lambda: "ok" in bottles.command("exec", slug, "--", PYTHON, "-c", HEALTH).output, what="the answer"
    )
    assert bottles.ps(slug)["state"] == "running"
    bottles.ok("delete", slug)


@pytest.mark.parametrize("part", ["supervisor", "sandbox", "init"])
def test_a_killed_bottle_is_gone_and_the_record_says_so(bottles: Bottles, part: str) -> None:
    slug = bottles.started(f"{part}-dies", "sleep", "1000")
    everybody = family(bottles.supervisor(slug))
    number = {"supervisor": 0, "sandbox": 1, "init": 2}[part]
    os.kill(everybody[number], signal.SIGKILL)
    wait_until(lambda: all(is_gone(pid) for pid in everybody), what="the end of all of it")
    wait_until(lambda: bottles.row(slug)["state"] == "stopped", what="the caretaker's notice")
    assert bottles.ps(slug)["state"] == "stopped"
    assert bottles.audited(slug)[-1] == ("bottle stopped", "bot-bottle")
    bottles.ok("start", slug, "--", "sleep", "1000")
    assert bottles.ps(slug)["state"] == "running", "and it can be started again"
    bottles.ok("delete", slug)


def test_a_sandbox_that_no_record_knows_is_removed(bottles: Bottles) -> None:
    slug = bottles.started("orphan", "sleep", "1000")
    held = family(bottles.supervisor(slug))
    bottles.rows("update botbottle_bottle set state = 'deleted' where slug = ?", slug)
    wait_until(lambda: all(is_gone(pid) for pid in held), what="the orphan's end")
    wait_until(lambda: bottles.audited(slug)[-1] == ("orphan removed", "bot-bottle"), what="its record")


def children(server: RunningServer, command: str) -> list[int]:
    up = server.process.pid
    found = Path(f"/proc/{up}/task/{up}/children").read_text().split()
    return [int(pid) for pid in found if command_of(int(pid))[-1:] == [command]]


# --- on the console


def test_an_operator_starts_and_stops_a_bottle_in_the_admin(bottles: Bottles) -> None:
    slug = bottles.started("clicked", "sleep", "1000")
    bottles.ok("stop", slug)
    bottles.manifest(slug, "command: [sleep, '1000']\n")
    pk = str(bottles.row(slug)["id"])
    with httpx.Client(
        base_url=bottles.server.console_url, follow_redirects=True, timeout=PATIENCE, trust_env=False
    ) as browser:
        post_form(
            browser, "/admin/login/", username="operator", password=bottles.server.password, next="/history/"
        )
        changelist = "/admin/botbottle/bottle/"
        assert post_form(browser, changelist, action="start", _selected_action=pk).status_code == 200
        wait_until(lambda: bottles.row(slug)["state"] == "running", what="the start")
        assert f">{slug}</a>" in browser.get("/bottles/_strip/").text
        assert post_form(browser, changelist, action="stop", _selected_action=pk).status_code == 200
        wait_until(lambda: bottles.row(slug)["state"] == "stopped", what="the stop")
    assert bottles.audited(slug)[-2:] == [("bottle started", "operator"), ("bottle stopped", "operator")]
