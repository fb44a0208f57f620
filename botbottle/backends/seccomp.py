"""System calls that bottles must not make: one table, rendered for bubblewrap (cBPF) and Docker (JSON). Pure.

Covers what namespaces do not contain (AF_VSOCK, io_uring, keyrings, TIOCSTI) and what a sandbox never needs.
"""

from __future__ import annotations

import errno
import os
import struct
from typing import Any

from botbottle.backends.base import Unavailable

AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
NAMESPACES = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
SET_ID = (0o4000, 0o2000)
ODD_PERSONALITIES = (0x0100000, 0x0200000, 0x0400000)  # map page zero, old layout, readable is executable


ONLY = "refused unless the argument is one of these small numbers"
EQUALS = "refused when the argument's low 32 bits, which are all the kernel looks at, are one of these"
ANY_BIT = "refused when one of these bits is set"


class Condition:
    """A test of one argument of a call. (Plain classes here: each start of a bottle imports this.)"""

    def __init__(self, kind: str, argument: int, values: tuple[int, ...]) -> None:
        self.kind, self.argument, self.values = kind, argument, values


class Refusal:
    """Calls that fail with an error: always, or under a condition."""

    def __init__(self, calls: str, error: int = errno.EPERM, when: Condition | None = None) -> None:
        self.calls = tuple(calls.split())
        self.error, self.when = error, when


REFUSALS = (
    Refusal(
        "socket socketpair",
        errno.EAFNOSUPPORT,
        Condition(
            ONLY, 0, (AF_UNIX, AF_INET, AF_INET6, AF_NETLINK)
        ),  # not AF_VSOCK: no network namespace contains it
    ),
    Refusal("ioctl", errno.EPERM, Condition(EQUALS, 1, (TIOCSTI, TIOCLINUX))),  # typing into a terminal
    Refusal("clone", errno.EPERM, Condition(ANY_BIT, 0, NAMESPACES)),
    Refusal("clone3", errno.ENOSYS),  # its flags are in memory, out of a filter's sight; libc uses clone()
    Refusal("personality", errno.EPERM, Condition(ANY_BIT, 0, ODD_PERSONALITIES)),
    Refusal("io_uring_setup io_uring_enter io_uring_register", errno.ENOSYS),
    # A program left in the workspace with such a bit would run with the operator's rights on the host.
    Refusal("chmod fchmod creat mknod", errno.EPERM, Condition(ANY_BIT, 1, SET_ID)),
    Refusal("fchmodat fchmodat2 mknodat open", errno.EPERM, Condition(ANY_BIT, 2, SET_ID)),
    Refusal("openat", errno.EPERM, Condition(ANY_BIT, 3, SET_ID)),
    Refusal("openat2", errno.ENOSYS),  # its mode is in memory; programs then use openat()
    Refusal(
        "mount umount2 pivot_root chroot setns unshare open_tree move_mount fsopen fsconfig fsmount fspick"
    ),
    Refusal("mount_setattr open_tree_attr open_by_handle_at quotactl quotactl_fd swapon swapoff"),
    Refusal("bpf perf_event_open userfaultfd keyctl add_key request_key lookup_dcookie"),
    Refusal("init_module finit_module delete_module create_module query_module get_kernel_syms"),
    Refusal("kexec_load kexec_file_load reboot acct syslog vhangup iopl ioperm"),
    Refusal("settimeofday clock_settime clock_adjtime adjtimex"),
    Refusal("nfsservctl uselib sysfs ustat _sysctl"),
    # Not dangerous by themselves; Docker's own profile refuses them too, and ours takes its place.
    Refusal("kcmp mbind get_mempolicy set_mempolicy set_mempolicy_home_node migrate_pages move_pages"),
    Refusal("fanotify_init pidfd_getfd process_madvise sethostname setdomainname"),
)

_SHARED = {  # numbers that are the same everywhere
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "clone3": 435,
    "openat2": 437, "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442,
    "quotactl_fd": 443, "set_mempolicy_home_node": 450, "fchmodat2": 452, "open_tree_attr": 467,
}  # fmt: skip
_X86_64 = _SHARED | {
    "open": 2, "ioctl": 16, "socket": 41, "socketpair": 53, "clone": 56, "creat": 85, "chmod": 90,
    "fchmod": 91, "syslog": 103, "mknod": 133, "uselib": 134, "personality": 135, "ustat": 136,
    "sysfs": 139, "vhangup": 153, "pivot_root": 155, "_sysctl": 156, "adjtimex": 159, "chroot": 161,
    "acct": 163, "settimeofday": 164, "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168,
    "reboot": 169, "sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173,
    "create_module": 174, "init_module": 175, "delete_module": 176, "get_kernel_syms": 177,
    "query_module": 178, "quotactl": 179, "nfsservctl": 180, "lookup_dcookie": 212,
    "clock_settime": 227, "mbind": 237, "set_mempolicy": 238, "get_mempolicy": 239,
    "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "migrate_pages": 256,
    "openat": 257, "mknodat": 259, "fchmodat": 268, "unshare": 272, "move_pages": 279,
    "perf_event_open": 298, "fanotify_init": 300, "open_by_handle_at": 304, "clock_adjtime": 305,
    "setns": 308, "kcmp": 312, "finit_module": 313, "kexec_file_load": 320, "bpf": 321,
    "userfaultfd": 323,
}  # fmt: skip
_AARCH64 = _SHARED | {
    "lookup_dcookie": 18, "ioctl": 29, "mknodat": 33, "umount2": 39, "mount": 40, "pivot_root": 41,
    "nfsservctl": 42, "chroot": 51, "fchmod": 52, "fchmodat": 53, "openat": 56, "vhangup": 58,
    "quotactl": 60, "acct": 89, "personality": 92, "unshare": 97, "kexec_load": 104,
    "init_module": 105, "delete_module": 106, "clock_settime": 112, "syslog": 116, "reboot": 142,
    "sethostname": 161, "setdomainname": 162, "settimeofday": 170, "adjtimex": 171, "socket": 198,
    "socketpair": 199, "add_key": 217, "request_key": 218, "keyctl": 219, "clone": 220,
    "swapon": 224, "swapoff": 225, "mbind": 235, "get_mempolicy": 236, "set_mempolicy": 237,
    "migrate_pages": 238, "move_pages": 239, "perf_event_open": 241, "fanotify_init": 262,
    "open_by_handle_at": 265, "clock_adjtime": 266, "setns": 268, "kcmp": 272, "finit_module": 273,
    "bpf": 280, "userfaultfd": 282, "kexec_file_load": 294,
}  # fmt: skip


class Architecture:
    def __init__(self, audit: int, docker: str, numbers: dict[str, int]) -> None:
        self.audit = audit  # the kernel's number for it in a filter
        self.docker, self.numbers = docker, numbers


ARCHITECTURES = {
    "x86_64": Architecture(0xC000003E, "SCMP_ARCH_X86_64", _X86_64),
    "aarch64": Architecture(0xC00000B7, "SCMP_ARCH_AARCH64", _AARCH64),
}


def architecture(machine: str = "") -> Architecture:
    """The architecture by name, or of this host. Raises Unavailable: bottles need a filter."""
    machine = machine or os.uname().machine
    if machine not in ARCHITECTURES:
        known = " and ".join(ARCHITECTURES)
        raise Unavailable(f"There is no system-call filter for {machine}: bottles run on {known}.")
    return ARCHITECTURES[machine]


# cBPF, as in linux/filter.h and linux/seccomp.h

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_X32 = 0x40000000


def _step(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("<HBBI", code, then, otherwise, value)


def cbpf(machine: str = "") -> bytes:
    """The program for `bwrap --seccomp`. A call by another architecture's numbers kills the process."""
    arch = architecture(machine)
    kill, steps = _step(_RETURN, _KILL), [_step(_LOAD, _ARCHITECTURE_AT), _step(_EQUAL, arch.audit, 1)]
    steps += [kill, _step(_LOAD, _NUMBER_AT), _step(_AT_LEAST, _X32, 0, 1), kill]
    for refusal in REFUSALS:
        refuse = _step(_RETURN, _ERRNO | refusal.error)
        for call in refusal.calls:
            if call in arch.numbers:
                body = _checked(refusal.when, refuse) if refusal.when else [refuse]
                steps += [_step(_EQUAL, arch.numbers[call], 0, len(body)), *body]
    return b"".join([*steps, _step(_RETURN, _ALLOW)])


def _checked(when: Condition, refuse: bytes) -> list[bytes]:
    """The steps that test an argument's low half. (Both architectures are little-endian.)"""
    load, allow = _step(_LOAD, _ARGUMENTS_AT + 8 * when.argument), _step(_RETURN, _ALLOW)
    if when.kind == ANY_BIT:
        return [load, _step(_ANY_BIT, sum(when.values), 0, 1), refuse, allow]
    values = when.values
    tests = [_step(_EQUAL, value, len(values) - place) for place, value in enumerate(values)]
    return [load, *tests, allow, refuse] if when.kind == EQUALS else [load, *tests, refuse, allow]


def docker_profile(machine: str = "") -> dict[str, Any]:
    """The same table as a Docker seccomp profile that allows what is not refused.

    It replaces Docker's own, so the table also has everything that Docker's refuses.
    """
    refused = [
        {
            "names": list(refusal.calls),
            "action": "SCMP_ACT_ERRNO",
            "errnoRet": refusal.error,
            "args": arguments,
        }
        for refusal in REFUSALS
        for arguments in _compared(refusal.when)
    ]
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": [architecture(machine).docker],
        "syscalls": refused,
    }


def _compared(when: Condition | None) -> list[list[dict[str, Any]]]:
    """One rule per comparison: several comparisons of one argument in one rule do not combine."""
    if when is None:
        return [[]]
    if when.kind == ONLY:
        highest = max(when.values)
        lower = [number for number in range(highest) if number not in when.values]
        rules = [{"value": number, "op": "SCMP_CMP_EQ"} for number in lower]
        rules.append({"value": highest, "op": "SCMP_CMP_GT"})  # all 64 bits: unusual values are refused too
    elif when.kind == EQUALS:
        rules = [{"value": 0xFFFFFFFF, "valueTwo": low, "op": "SCMP_CMP_MASKED_EQ"} for low in when.values]
    else:
        rules = [{"value": bit, "valueTwo": bit, "op": "SCMP_CMP_MASKED_EQ"} for bit in when.values]
    return [[{"index": when.argument, **rule}] for rule in rules]
