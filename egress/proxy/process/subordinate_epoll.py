"""An epoll instance that counts for another account: for one of our subordinate uids, where the host has any.

The kernel counts what an epoll instance watches for the account that made it. So a child becomes the other
account, makes one, and passes it to us. It runs nothing else.
"""

from __future__ import annotations

import os
import pwd
import select
import shutil
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

RANGES = Path("/etc/subuid")
NOBODY = 65534  # for root, which may become anybody
CLONE_NEWUSER = 0x10000000
_SECONDS = 10


def epoll() -> int | None:
    """A descriptor; None where this account has no other uid, or no tool to become it (newuidmap)."""
    uid = NOBODY if os.geteuid() == 0 else _subordinate_uid()
    tool = shutil.which("newuidmap")
    if uid is None or (os.geteuid() != 0 and tool is None):
        return None
    with suppress(OSError, subprocess.SubprocessError):
        return _made_by(uid, tool)
    return None


def _subordinate_uid() -> int | None:
    """The last one of our first range: containers take the first ones."""
    names = {str(os.geteuid())}
    with suppress(KeyError):
        names.add(pwd.getpwuid(os.geteuid()).pw_name)
    with suppress(OSError, ValueError):
        for line in RANGES.read_text(encoding="utf-8").splitlines():
            name, first, count = line.split(":")
            if name in names and int(count) > 0:
                return int(first) + int(count) - 1
    return None


def _made_by(uid: int, tool: str | None) -> int | None:
    """Raises OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.settimeout(_SECONDS)
        child = os.fork()
        if child == 0:
            ours.close()  # or the child would not see that the parent has closed its end
            _make(uid, theirs)
        theirs.close()
        try:
            return _received_epoll(ours, child, uid, tool)
        finally:
            ours.close()  # what still waits for us ends
            os.waitpid(child, 0)


def _received_epoll(connection: socket.socket, child: int, uid: int, tool: str | None) -> int | None:
    if os.geteuid() != 0:
        connection.recv(1)  # it has a user namespace of its own
        words = [str(tool), str(child), "0", str(uid), "1"]
        done = subprocess.run(words, capture_output=True, timeout=_SECONDS, check=False)  # noqa: S603
        if done.returncode:
            return None
        connection.send(b".")
    _, descriptors, _, _ = socket.recv_fds(connection, 1, 1, socket.MSG_CMSG_CLOEXEC)
    return descriptors[0] if descriptors else None


def _make(uid: int, connection: socket.socket) -> None:
    """In the child; does not return."""
    try:
        connection.settimeout(_SECONDS)
        if os.geteuid() != 0:
            _leave_for_a_namespace()
            connection.send(b".")
            connection.recv(1)  # its root is the other account now
            uid = 0
        os.setresuid(uid, uid, uid)
        with select.epoll() as made:
            socket.send_fds(connection, [b"."], [made.fileno()])
    finally:
        os._exit(0)


def _leave_for_a_namespace() -> None:
    import ctypes  # noqa: PLC0415 - only the child needs it

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWUSER):
        raise OSError(ctypes.get_errno(), "unshare")
