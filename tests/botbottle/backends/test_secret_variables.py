"""The proxy is told what a bottle is handed: the file, whoever writes it and whoever takes it away."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from botbottle.backends import secret_variables
from botbottle.backends.base import Life
from botbottle.core.plan_types import BackendError, Plan, Variable
from egress.contract.secret_variables import FILE, from_bytes

VARIABLES = {"KEY": Variable(from_env="HOST_KEY"), "PLAIN": Variable("a plain value")}


@pytest.fixture(autouse=True)
def _key_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOST_KEY", "shapeless words")


def plan_of(tmp_path: Path, variables: dict[str, Variable]) -> Plan:
    return Plan("demo", "local", str(tmp_path), variables=variables)


def told(run: Path) -> frozenset[str]:
    return from_bytes((run / FILE).read_bytes())


def test_secrets_are_written_down_and_plain_values_are_not(tmp_path: Path) -> None:
    run = tmp_path / "run"
    values = secret_variables.environment(plan_of(tmp_path, VARIABLES), run)
    assert values == {"KEY": "shapeless words", "PLAIN": "a plain value"}
    assert told(run) == {"shapeless words"}
    assert (run / FILE).stat().st_mode & 0o777 == 0o600
    assert run.stat().st_mode & 0o777 == 0o700


def test_a_start_replaces_what_was_written_before(tmp_path: Path) -> None:
    secret_variables.add(tmp_path, {"OLD": "of another life"})
    secret_variables.environment(plan_of(tmp_path, VARIABLES), tmp_path)
    assert told(tmp_path) == {"shapeless words"}
    secret_variables.environment(plan_of(tmp_path, {"PLAIN": Variable("x")}), tmp_path)
    assert not (tmp_path / FILE).exists()


def test_a_server_in_the_bottle_adds_its_own(tmp_path: Path) -> None:
    secret_variables.environment(plan_of(tmp_path, VARIABLES), tmp_path)
    secret_variables.add(tmp_path, {"TOKEN": "another secret"})
    secret_variables.add(tmp_path, {})
    assert told(tmp_path) == {"shapeless words", "another secret"}


def test_nothing_is_handed_out_that_cannot_be_written_down(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("in the way")
    with pytest.raises(BackendError, match="The proxy cannot be told"):
        secret_variables.environment(plan_of(tmp_path, VARIABLES), tmp_path / "run")


def test_bytes_that_are_no_text_are_refused_by_the_variables_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOST_KEY", b"secret\xff".decode("utf-8", "surrogateescape"))
    with pytest.raises(BackendError, match=r"^env\.KEY: it is not UTF-8 text") as caught:
        secret_variables.environment(plan_of(tmp_path, VARIABLES), tmp_path)
    assert "secret" not in str(caught.value)


def test_what_a_dead_bottle_was_handed_is_forgotten(tmp_path: Path) -> None:
    secret_variables.add(tmp_path, {"KEY": "shapeless words"})
    secret_variables.forget_when_over(tmp_path, "demo", lambda _: Life(alive=True), lock="lock")
    assert (tmp_path / FILE).exists(), "it lives"
    secret_variables.forget_when_over(tmp_path, "demo", unknown, lock="lock")
    assert (tmp_path / FILE).exists(), "nobody knows"
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        secret_variables.forget_when_over(tmp_path, "demo", lambda _: Life(alive=False), lock="lock")
    assert (tmp_path / FILE).exists(), "it is being started"
    lives = iter([False, True])
    secret_variables.forget_when_over(tmp_path, "demo", lambda _: Life(alive=next(lives)), lock="lock")
    assert (tmp_path / FILE).exists(), "it was started meanwhile"
    secret_variables.forget_when_over(tmp_path, "demo", lambda _: Life(alive=False), lock="lock")
    assert not (tmp_path / FILE).exists()


def unknown(_slug: str) -> Life:
    raise BackendError("The engine does not answer.")
