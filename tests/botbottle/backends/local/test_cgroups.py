"""Limits: the groups that are made, in both versions' words, and the truth about those that cannot be."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from botbottle.backends.local import cgroups
from botbottle.core.plan_types import Limits

ALL = Limits(cpus=1.5, memory=256 << 20, pids=64)


@pytest.fixture
def proc(tmp_path: Path):
    """A /proc/self that says where the control groups are: here, as plain directories."""

    def make(*mounts: tuple[str, str, str], groups: str) -> str:
        lines = []
        for where, kind, options in mounts:
            (tmp_path / where).mkdir(parents=True)
            lines.append(f"{kind} {tmp_path / where} {kind} {options} 0 0\n")
        (tmp_path / "mounts").write_text("".join(lines))
        (tmp_path / "cgroup").write_text(groups)
        return str(tmp_path)

    return make


def v2_group(monkeypatch: pytest.MonkeyPatch, path: Path, *files: str) -> None:
    """The kernel fills a new group with its files; here mkdir does."""
    plain = Path.mkdir

    def mkdir(self: Path, *arguments: object, **options: object) -> None:
        plain(self, *arguments, **options)
        if self == path:
            for name in files:
                (self / name).touch()

    monkeypatch.setattr(Path, "mkdir", mkdir)


V2_FILES = ("cgroup.controllers", "cgroup.procs", "memory.max", "memory.swap.max", "pids.max", "cpu.max")


def test_v2_makes_one_group_beside_our_own(tmp_path, proc, monkeypatch):
    where = proc(("cg", "cgroup2", "rw"), groups="0::/user/session\n")
    parent = tmp_path / "cg" / "user"
    (parent / "session").mkdir(parents=True)
    control = parent / "cgroup.subtree_control"
    control.write_text("cpu memory pids")
    monkeypatch.setattr(cgroups, "_delegated", lambda _: frozenset(control.read_text().split()))
    v2_group(monkeypatch, parent / "b-demo", *V2_FILES)
    placement = cgroups.place("b-demo", ALL, proc=where)
    assert placement == cgroups.Placement(cgroups=(str(parent / "b-demo"),))
    written = {name: (parent / "b-demo" / name).read_text() for name in V2_FILES[2:]}
    assert written == {
        "memory.max": str(256 << 20), "memory.swap.max": "0", "pids.max": "64", "cpu.max": "150000 100000",
    }  # fmt: skip


def test_v1_makes_one_group_for_each_controller(tmp_path, proc, monkeypatch):
    where = proc(
        ("memory", "cgroup", "rw,memory"), ("pids", "cgroup", "rw,pids"), ("cpu", "cgroup", "rw,cpu,cpuacct"),
        groups="4:memory:/mine\n3:pids:/\n2:cpu,cpuacct:/\n1:name=systemd:/\n0::/\n",
    )  # fmt: skip
    (tmp_path / "memory" / "mine").mkdir()
    monkeypatch.setattr(cgroups.os, "access", lambda *_: True)
    placement = cgroups.place("b-demo", ALL, proc=where)
    groups = {str(tmp_path / name / "b-demo") for name in ("memory/mine", "pids", "cpu")}
    assert set(placement.cgroups) == groups
    assert (placement.missing, placement.weaker, placement.rlimits) == ((), (), ())
    assert (tmp_path / "memory/mine/b-demo/memory.limit_in_bytes").read_text() == str(256 << 20)
    assert (tmp_path / "cpu/b-demo/cpu.cfs_quota_us").read_text() == "150000"


@pytest.fixture
def host(monkeypatch):
    """An account and a kernel."""

    def make(uid: int, release: str) -> None:
        monkeypatch.setattr(cgroups.os, "geteuid", lambda: uid)
        uname = type("Uname", (), {"release": release})
        monkeypatch.setattr(cgroups.os, "uname", lambda: uname)

    return make


def test_without_groups_other_means_limit_and_it_says_what_holds_in_part(proc, host):
    host(1000, "6.1.0-18-amd64")
    placement = cgroups.place("b-demo", ALL, proc=proc(groups="0::/\n"))
    assert placement.cgroups == ()
    assert placement.rlimits == ((resource.RLIMIT_DATA, 256 << 20),)
    assert placement.pids_inside == 64
    assert len(placement.processors) == min(2, len(os.sched_getaffinity(0)))
    assert set(placement.processors) <= os.sched_getaffinity(0)
    assert (placement.missing, placement.weaker) == ((), ("memory", "cpus"))


@pytest.mark.parametrize(
    ("uid", "release"), [(1000, "5.13.9"), (1000, "4.18.0-553"), (1000, "odd"), (0, "6.1.0")]
)
def test_processes_that_cannot_be_counted_are_said_to_be_without_limit(proc, host, uid, release):
    """An older kernel counts all of the operator's own; it never stops root."""
    host(uid, release)
    placement = cgroups.place("b-demo", Limits(pids=64), proc=proc(groups="0::/\n"))
    assert placement == cgroups.Placement(missing=("pids",))


def test_a_hierarchy_that_may_not_be_written_counts_as_none(tmp_path, proc, host):
    host(1000, "5.10.0")
    where = proc(("pids", "cgroup", "rw,pids"), groups="3:pids:/gone\n")
    placement = cgroups.place("b-demo", Limits(pids=64), proc=where)
    assert placement == cgroups.Placement(missing=("pids",))
    assert not list((tmp_path / "pids").iterdir())


def test_nothing_wanted_makes_nothing(proc):
    where = proc(("pids", "cgroup", "rw,pids"), groups="3:pids:/\n")
    assert cgroups.place("b-demo", Limits(), proc=where) == cgroups.Placement()


def test_removal_is_fine_when_there_is_nothing(tmp_path):
    cgroups.remove([str(tmp_path / "never")])


@pytest.fixture
def v2_machine(tmp_path, monkeypatch):
    """Everything handed down everywhere; which groups a program and we ourselves are in."""

    def make(theirs: str) -> str:
        for name, groups in (("self", "0::/user/session\n"), ("7", f"0::{theirs}\n")):
            (tmp_path / name).mkdir()
            (tmp_path / name / "cgroup").write_text(groups)
        (tmp_path / "self" / "mounts").write_text(f"cgroup2 {tmp_path}/cg cgroup2 rw 0 0\n")
        (tmp_path / "cg" / "user").mkdir(parents=True)
        monkeypatch.setattr(cgroups, "_delegated", lambda _: frozenset({"memory", "pids", "cpu"}))
        v2_group(monkeypatch, tmp_path / "cg/user/one", *V2_FILES)
        return str(tmp_path)

    return make


def test_a_program_of_a_bottle_without_limits_gets_a_group_beside_ours(tmp_path, v2_machine):
    placement = cgroups.place_within(7, "one", ALL, proc=v2_machine("/user/session"))
    assert placement == cgroups.Placement(cgroups=(str(tmp_path / "cg/user/one"),))
    assert (tmp_path / "cg/user/one/cgroup.procs").read_text() == "7"


def test_v2_takes_no_program_out_of_its_bottles_group(tmp_path, v2_machine):
    placement = cgroups.place_within(7, "one", ALL, proc=v2_machine("/user/bottle"))
    assert placement == cgroups.Placement(weaker=("memory", "pids", "cpus"))
    assert not (tmp_path / "cg/user/one").exists()


def test_a_program_that_is_gone_leaves_no_group(tmp_path, v2_machine, monkeypatch):
    proc = v2_machine("/user/session")
    monkeypatch.setattr(Path, "write_text", refusing("cgroup.procs", Path.write_text))
    placement = cgroups.place_within(7, "one", ALL, proc=proc)
    assert placement == cgroups.Placement(weaker=("memory", "pids", "cpus"))


def refusing(name, plain):
    def write(self, text):
        if self.name == name:
            raise ProcessLookupError
        return plain(self, text)

    return write


def test_groups_below_are_removed_first(tmp_path):
    (tmp_path / "bottle" / "server").mkdir(parents=True)
    cgroups.remove([str(tmp_path / "bottle")])
    assert not (tmp_path / "bottle").exists()
