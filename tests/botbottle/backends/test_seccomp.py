"""The one table of refused system calls, in both renderings: interpreted here, and loaded into the kernel."""

from __future__ import annotations

import errno
import re
import struct
from pathlib import Path

import pytest

from botbottle.backends import seccomp
from botbottle.backends.base import Unavailable

ALLOWED, KILLED = "allowed", "killed"
AF_VSOCK, AF_PACKET, AF_ALG = 40, 17, 38
MACHINES = sorted(seccomp.ARCHITECTURES)

CASES = [
    ("socket", (1,), ALLOWED),
    ("socket", (2,), ALLOWED),
    ("socket", (10,), ALLOWED),
    ("socket", (16,), ALLOWED),
    ("socket", (0,), errno.EAFNOSUPPORT),
    ("socket", (3,), errno.EAFNOSUPPORT),
    ("socket", (AF_PACKET,), errno.EAFNOSUPPORT),
    ("socket", (AF_ALG,), errno.EAFNOSUPPORT),
    ("socket", (AF_VSOCK,), errno.EAFNOSUPPORT),
    ("socket", (AF_VSOCK | 1 << 32,), errno.EAFNOSUPPORT),
    ("socketpair", (AF_VSOCK,), errno.EAFNOSUPPORT),
    ("ioctl", (0, 0x5401), ALLOWED),
    ("ioctl", (0, 0x5412), errno.EPERM),
    ("ioctl", (0, 0x5412 | 1 << 32), errno.EPERM),
    ("ioctl", (0, 0x541C), errno.EPERM),
    ("clone", (0x01200011,), ALLOWED),  # fork()
    ("clone", (0x003D0F00,), ALLOWED),  # a thread
    ("clone", (0x10000011,), errno.EPERM),
    ("clone", (0x40000011,), errno.EPERM),
    ("clone3", (), errno.ENOSYS),
    ("unshare", (0x400,), errno.EPERM),
    ("unshare", (0x10000000,), errno.EPERM),
    ("unshare", (0x80,), errno.EPERM),
    ("personality", (0,), ALLOWED),
    ("personality", (0x0400000,), errno.EPERM),
    ("io_uring_setup", (), errno.ENOSYS),
    ("mount", (), errno.EPERM),
    ("setns", (), errno.EPERM),
    ("keyctl", (), errno.EPERM),
    ("bpf", (), errno.EPERM),
]
# Calls that Docker's own profile refuses to a container without capabilities, whatever their arguments.
REFUSED_BY_DOCKER = """
    acct add_key bpf chroot clock_settime clone3 create_module delete_module fanotify_init finit_module
    fsconfig fsmount fsopen fspick get_kernel_syms get_mempolicy init_module ioperm iopl kcmp
    kexec_file_load kexec_load keyctl lookup_dcookie mbind migrate_pages mount mount_setattr move_mount
    move_pages nfsservctl open_by_handle_at open_tree perf_event_open pidfd_getfd pivot_root
    process_madvise query_module quotactl quotactl_fd reboot request_key set_mempolicy
    set_mempolicy_home_node setdomainname sethostname setns settimeofday swapoff swapon sysfs syslog
    umount2 unshare uselib userfaultfd ustat vhangup _sysctl
"""


def interpret(program: bytes, *, number: int, audit: int, arguments: tuple[int, ...]) -> object:
    """What the kernel would answer: the few instructions the filter is made of, and no others."""
    data = struct.pack("<IIQ6Q", number, audit, 0, *arguments, *[0] * (6 - len(arguments)))
    steps = list(struct.iter_unpack("<HBBI", program))
    accumulator = place = 0
    while True:
        code, then, otherwise, value = steps[place]
        place += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, value)
        elif code == 0x06:
            break
        else:
            tests = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: accumulator & value != 0}
            place += then if tests[code] else otherwise
    return {0x7FFF0000: ALLOWED, 0x80000000: KILLED}.get(value, value & 0xFFFF)


def consult(profile: dict, call: str, arguments: tuple[int, ...]) -> object:
    """What libseccomp makes of the profile: the first rule whose one comparison holds."""
    for rule in profile["syscalls"]:
        assert len(rule["args"]) <= 1, "comparisons of one argument in one rule are alternatives for runc"
        if call in rule["names"] and all(holds(each, arguments) for each in rule["args"]):
            return rule["errnoRet"]
    return ALLOWED


def holds(comparison: dict, arguments: tuple[int, ...]) -> bool:
    given, value = arguments[comparison["index"]], comparison["value"]
    return {
        "SCMP_CMP_EQ": given == value,
        "SCMP_CMP_GT": given > value,
        "SCMP_CMP_MASKED_EQ": given & value == comparison.get("valueTwo"),
    }[comparison["op"]]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("call", "arguments", "answer"), CASES)
def test_both_renderings_give_the_same_answer(machine, call, arguments, answer):
    arch = seccomp.ARCHITECTURES[machine]
    program = seccomp.cbpf(machine)
    number = arch.numbers[call]
    assert interpret(program, number=number, audit=arch.audit, arguments=arguments) == answer
    assert consult(seccomp.docker_profile(machine), call, arguments) == answer


@pytest.mark.parametrize("machine", MACHINES)
def test_every_refused_call_is_refused_by_its_number_and_no_other_is(machine):
    arch, program = seccomp.ARCHITECTURES[machine], seccomp.cbpf(machine)
    always = {
        arch.numbers[call]: refusal.error
        for refusal in seccomp.REFUSALS
        for call in refusal.calls
        if refusal.when is None and call in arch.numbers
    }
    for number in range(600):
        expected = always.get(number, ALLOWED)
        arguments = (1, 0)  # a Unix socket, no flags beside the exit signal
        assert interpret(program, number=number, audit=arch.audit, arguments=arguments) == expected, number


@pytest.mark.parametrize("machine", MACHINES)
def test_whatever_dockers_own_profile_refuses_is_refused_by_ours_which_takes_its_place(machine):
    profile = seccomp.docker_profile(machine)
    assert [call for call in REFUSED_BY_DOCKER.split() if consult(profile, call, (1, 0)) == ALLOWED] == []


@pytest.mark.parametrize("machine", MACHINES)
def test_other_architectures_and_x32_are_killed(machine):
    arch, program = seccomp.ARCHITECTURES[machine], seccomp.cbpf(machine)
    i386 = 0x40000003
    assert interpret(program, number=1, audit=i386, arguments=()) == KILLED
    assert interpret(program, number=1 | 0x40000000, audit=arch.audit, arguments=()) == KILLED
    assert seccomp.docker_profile(machine)["architectures"] == [arch.docker]


@pytest.mark.parametrize(
    ("machine", "header"),
    [
        ("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
        ("aarch64", "/usr/include/asm-generic/unistd.h"),
    ],
)
def test_the_numbers_are_the_kernels(machine, header):
    if not Path(header).exists():
        pytest.skip(f"no {header}")
    pattern = r"#define\s+__NR(?:3264)?_(\w+)\s+(\d+)"
    kernel = {name: int(number) for name, number in re.findall(pattern, Path(header).read_text())}
    ours = seccomp.ARCHITECTURES[machine].numbers
    newer = max(kernel.values())
    assert {name: kernel.get(name) for name, number in ours.items() if number <= newer} == {
        name: number for name, number in ours.items() if number <= newer
    }


def test_the_program_fits_into_the_kernels_limit():
    assert all(len(seccomp.cbpf(machine)) // 8 < 4096 for machine in MACHINES)


def test_a_machine_without_a_filter_is_refused():
    with pytest.raises(Unavailable, match="riscv64"):
        seccomp.cbpf("riscv64")
