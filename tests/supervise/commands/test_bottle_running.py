"""manage.py bottle's verbs about sandboxes, as far as they go without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User

from botbottle.launch import journal
from botbottle.models import Bottle
from supervise.bottles import records as bottles
from supervise.cli.bottle_output import Plain
from supervise.models import AuditEvent


@pytest.fixture
def home(settings: Any, tmp_path: Path) -> Path:
    settings.BOTTLE_HOME, settings.BOTTLE_MANIFESTS = tmp_path, tmp_path / "bottles"
    return tmp_path


def test_init_writes_an_example_that_plan_understands(manage: Any, home: Path) -> None:
    made = manage("bottle", "init", "one", "--json").json
    assert made == {"slug": "one", "manifest": str(home / "bottles" / "one.yaml")}
    plan = manage("bottle", "plan", "one", "--json").json
    assert (plan["plan"]["slug"], plan["plan"]["backend"]) == ("one", "local")
    assert plan["text"] in manage("bottle", "plan", "one").output
    assert manage("bottle", "plan", "one", "--", "sleep", "9").output.count("sleep 9") == 1
    assert not Bottle.objects.exists(), "nothing was started or recorded"


def test_init_never_overwrites(manage: Any, home: Path) -> None:
    manage("bottle", "init", "one")
    (home / "bottles" / "one.yaml").write_text("backend: docker\nimage: mine\n")
    assert "There is a manifest already" in manage("bottle", "init", "one").error
    assert (home / "bottles" / "one.yaml").read_text() == "backend: docker\nimage: mine\n"


@pytest.mark.parametrize("verb", ["plan", "run", "start"])
def test_without_a_manifest_it_says_how_to_write_one(manage: Any, home: Path, verb: str) -> None:
    assert "bottle init one" in manage("bottle", verb, "one").error
    assert not Bottle.objects.exists()


@pytest.mark.parametrize("verb", ["init", "plan", "run", "start"])
@pytest.mark.parametrize("slug", ["../one", "a/b", "Upper", "one.yaml"])
def test_a_name_that_is_a_path_is_refused(manage: Any, home: Path, verb: str, slug: str) -> None:
    assert "a-z, 0-9" in manage("bottle", verb, slug).error
    assert not list(home.iterdir())


@pytest.mark.parametrize("verb", ["stop", "rm", "attach", "logs"])
def test_an_unknown_bottle_is_refused(manage: Any, home: Path, verb: str) -> None:
    assert "There is no bottle 'nobody'" in manage("bottle", verb, "nobody").error


def test_a_bad_manifest_is_named_with_its_line_and_kept_as_the_problem(manage: Any, home: Path) -> None:
    bottles.create("one", author="tests")
    (home / "bottles" / "one.yaml").write_text("backend: local\nagent: hal\n")
    refused = manage("bottle", "start", "one", "--json")
    assert refused.json["error"] == "not_started"
    assert "line 2" in refused.error and "agent" in refused.error
    bottle = Bottle.objects.get()
    assert (bottle.state, bottle.problem) == ("stopped", refused.error)
    assert AuditEvent.objects.latest("seq").action == "bottle not started"


def test_a_bottle_that_never_ran_is_stopped_removed_and_deleted_without_its_backend(
    manage: Any, home: Path
) -> None:
    bottles.create("one", author="tests", backend="smolmachines")
    assert manage("bottle", "stop", "one").output == "one is created\n"
    assert manage("bottle", "rm", "one").error == ""
    assert manage("bottle", "delete", "one").error == ""
    assert not journal.exists(home / "bottles" / "one")


def test_who_acts_for_an_operator_needs_that_operators_permission(
    manage: Any, home: Path, operator: User
) -> None:
    bottles.create("one", author="tests")
    for verb in ("start", "stop"):
        assert "run_bottle" in manage("bottle", verb, "one", "--as", "olivia").error
        assert "no active operator" in manage("bottle", verb, "one", "--as", "nobody").error
    operator.user_permissions.add(Permission.objects.get(codename="run_bottle"))
    assert manage("bottle", "stop", "one", "--as", "olivia").error == ""


def test_ps_without_bottles_says_how_to_begin(manage: Any, home: Path) -> None:
    assert "bottle init" in manage("bottle", "ps").output
    assert manage("bottle", "ps", "--json").json == []


def test_ps_shows_what_is_wrong_in_one_inert_line(manage: Any, home: Path) -> None:
    bottles.create("one", author="tests")
    Bottle.objects.update(state="stopped", exit_code=7, problem="first\n\x1b]0;evil\x07second")
    output = manage("bottle", "ps").output
    assert output.count("\n") == 1
    assert "exit code 7" in output
    assert "\x1b" not in output


@pytest.mark.parametrize(
    ("chunks", "shown"),
    [
        ([b"plain\n"], "plain\n"),
        ([b"\x1b[1;31mred\x1b[0m\n"], "red\n"),
        ([b"\x1b[1;3", b"1mred\x1b", b"[0m\n"], "red\n"),
        ([b"\x1b]0;title\x07text\n"], "text\n"),
        ([b"\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\\n"], "link\n"),
        ([b"10%\r50%\r100%\r\n"], "100%\n"),
        ([b"\xe2\x9c", b"\x93 done\n"], "✓ done\n"),
        ([b"\xff\x00\x07\n"], "\ufffd⟦U+0000⟧⟦U+0007⟧\n"),
        (["a\u202eb\n".encode()], "a⟦U+202E⟧b\n"),
        ([b"no end"], "no end\n"),
        ([], ""),
    ],
)
def test_logs_do_nothing_to_a_terminal(chunks: list[bytes], shown: str) -> None:
    plain = Plain()
    assert (b"".join(plain.feed(chunk) for chunk in chunks) + plain.end()).decode() == shown


def test_an_endless_line_is_not_kept_in_memory() -> None:
    plain = Plain()
    assert sum(len(plain.feed(b"x" * 10_000)) for _ in range(100)) > 900_000
