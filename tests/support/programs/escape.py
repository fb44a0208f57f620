"""Runs inside a bottle and tries to get out, every way there is. Prints JSON: what was refused, what was not.

One argument: JSON {ports, addresses, gateways, sockets, abstract, hidden, readonly, pids, talk}. Standard
library only.
Whatever would leave the machine or change the kernel is only prepared: a file is opened for writing
and closed, a route is chosen and nothing sent. What is refused is refused at that point already.
"""
# ruff: noqa: PTH101, PTH108, PTH114, PTH115, PTH116, PTH118, PTH123, PTH208

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import platform
import signal
import socket
import sys
import termios

LIBC = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"
CALLS = {  # by their numbers, since no library has names for all of them
    "io_uring_setup": 425, "clone3": 435, "pidfd_open": 434, "pidfd_getfd": 438,
    "bpf": 321 if X86 else 280, "perf_event_open": 298 if X86 else 241, "userfaultfd": 323 if X86 else 282,
    "keyctl": 250 if X86 else 219, "add_key": 248 if X86 else 217, "fsopen": 430, "open_tree": 428,
    "ptrace": 101 if X86 else 117, "clone": 56 if X86 else 220, "getpid": 39 if X86 else 172,
    "process_vm_readv": 310 if X86 else 270, "kexec_load": 246 if X86 else 104, "setns": 308 if X86 else 268,
    "open_by_handle_at": 304 if X86 else 265, "ioctl": 16 if X86 else 29, "socket": 41 if X86 else 198,
}  # fmt: skip
CLONE_NEWUSER, CLONE_NEWNET, CLONE_NEWNS = 0x10000000, 0x40000000, 0x00020000
PTRACE_ATTACH = 16
DEVICES = [f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty")]
AF_VSOCK, AF_PACKET, AF_ALG, AF_XDP, AF_TIPC = 40, 17, 38, 44, 30


def call(name, *arguments):
    """The system call itself. Raises OSError."""
    ctypes.set_errno(0)
    result = LIBC.syscall(ctypes.c_long(CALLS[name]), *[ctypes.c_ulong(each) for each in arguments])
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def tcp(host, port):
    with socket.create_connection((host, port), timeout=2):
        return "connected"


def route(family, address):
    """Choosing a route sends nothing, and fails where there is none."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return f"would leave from {probe.getsockname()}"


def unix(path):
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(2)
        probe.connect(path)
        return "connected"


def make_socket(family, kind=socket.SOCK_DGRAM, protocol=0):
    socket.socket(family, kind, protocol).close()
    return "made"


def sneaky_family():
    """The kernel looks at the low half only; a filter that compares all of it lets this through."""
    os.close(call("socket", AF_VSOCK | 1 << 32, socket.SOCK_STREAM, 0))
    return "made"


def write(path):
    os.close(os.open(path, os.O_WRONLY))
    return "opened for writing"


def create_in(directory):
    os.close(os.open(os.path.join(directory, "planted"), os.O_CREAT | os.O_WRONLY))
    return "created"


def look(path):
    return f"seen: {os.stat(path).st_mode:o}"


def type_into_a_terminal(high):
    master, slave = os.openpty()
    try:
        if high:
            call(
                "ioctl", slave, termios.TIOCSTI | 1 << 32, ctypes.addressof(ctypes.create_string_buffer(b"x"))
            )
        else:
            fcntl.ioctl(slave, termios.TIOCSTI, b"x")
        return "typed"
    finally:
        os.close(master)
        os.close(slave)


def mount():
    if LIBC.mount(b"none", b"/tmp", b"tmpfs", 0, None) == -1:
        raise OSError(ctypes.get_errno(), "mount")
    return "mounted"


def unshare(flags):
    if LIBC.unshare(flags) == -1:
        raise OSError(ctypes.get_errno(), "unshare")
    return "unshared"


def clone_namespace(flags):
    pid = call("clone", flags | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    return "cloned"


def foreign_numbers():
    """By the numbers of x32, which a filter for x86_64 does not know."""
    if not X86:
        raise OSError(errno.ENOSYS, "not on this machine")
    pid = os.fork()
    if pid == 0:
        LIBC.syscall(ctypes.c_long(CALLS["getpid"] | 0x40000000))
        os._exit(0 if ctypes.get_errno() != errno.ENOSYS else 1)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status) or os.WEXITSTATUS(status):
        raise OSError(errno.ENOSYS, "refused")
    return "called"


def kill_first():
    os.kill(1, signal.SIGKILL)
    os.kill(1, 0)  # within a bottle nothing can kill process 1
    raise PermissionError(errno.EPERM, "still there")


def kernel_files():
    """Every file of /proc that is about the kernel, as against one's own processes."""
    for top in sorted(os.listdir("/proc")):
        if not top.isdigit() and not os.path.islink(f"/proc/{top}"):
            below = [
                os.path.join(where, name) for where, _, names in os.walk(f"/proc/{top}") for name in names
            ]
            yield from below or [f"/proc/{top}"]


def first_that(change, paths):
    """The first of these that lets itself be changed; as it is by now, so that nothing is."""
    for path in paths:
        try:
            change(path)
        except OSError:
            continue
        return path
    raise PermissionError(errno.EACCES, "none")


def open_setting(path):
    if path.startswith("/proc/pressure/"):  # whose triggers are everybody's
        raise PermissionError
    if os.stat(path).st_rdev == os.makedev(1, 3):  # hidden by the null device, which takes everything
        raise PermissionError
    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))


def same_mode(path):
    os.chmod(path, os.stat(path).st_mode & 0o7777)


def take_a_descriptor():
    pidfd = call("pidfd_open", 1, 0)
    os.close(call("pidfd_getfd", pidfd, 3, 0))
    return "taken"


def trace(pid):
    call("ptrace", PTRACE_ATTACH, pid, 0, 0)
    return "traced"


def signal_outside(pid):
    os.kill(pid, 0)
    return "there"


def device():
    os.mknod("/tmp/device", 0o600 | 0o060000, os.makedev(8, 0))
    return "made"


def program_with_its_owners_rights(new):
    """Left in the workspace, it would run with the operator's rights on the host."""
    path = "/workspace/set-id"
    try:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o4755 if new else 0o755))
        if not new:
            os.chmod(path, 0o2755)
        return "made"
    finally:
        if os.access(path, os.F_OK):
            os.unlink(path)


def become_root():
    os.setuid(0)
    return "root"


def attempts(given):
    """Name → what to try."""
    tries = {
        "name service": lambda: socket.getaddrinfo("example.com", 443),
        "udp to a public address": lambda: route(socket.AF_INET, ("192.0.2.1", 53)),
        "metadata address": lambda: route(socket.AF_INET, ("169.254.169.254", 80)),
        "ipv6": lambda: route(socket.AF_INET6, ("2001:db8::1", 53)),
        "mapped ipv6": lambda: route(socket.AF_INET6, ("::ffff:192.0.2.1", 53)),
        "multicast": lambda: route(socket.AF_INET, ("224.0.0.251", 5353)),
        "raw socket": lambda: make_socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
        "packet socket": lambda: make_socket(AF_PACKET, socket.SOCK_RAW),
        "vsock": lambda: make_socket(AF_VSOCK, socket.SOCK_STREAM),
        "vsock with high bits": sneaky_family,
        "kernel crypto socket": lambda: make_socket(AF_ALG, socket.SOCK_SEQPACKET),
        "xdp socket": lambda: make_socket(AF_XDP, socket.SOCK_RAW),
        "tipc socket": lambda: make_socket(AF_TIPC, socket.SOCK_SEQPACKET),
        "io_uring": lambda: call("io_uring_setup", 1, 0),
        "typing into a terminal": lambda: type_into_a_terminal(False),
        "typing into a terminal with high bits": lambda: type_into_a_terminal(True),
        "mount": mount,
        "new mount calls": lambda: call("fsopen", 0, 0),
        "open_tree": lambda: call("open_tree", 0, 0, 0),
        "user namespace": lambda: unshare(CLONE_NEWUSER),
        "network namespace": lambda: unshare(CLONE_NEWNET),
        "user namespace by clone": lambda: clone_namespace(CLONE_NEWUSER),
        "clone3": lambda: call("clone3", 0, 0),
        "joining a namespace": lambda: call("setns", os.open("/proc/self/ns/net", os.O_RDONLY), 0),
        "bpf": lambda: call("bpf", 0, 0, 0),
        "perf": lambda: call("perf_event_open", 0, 0, 0, 0, 0),
        "userfaultfd": lambda: call("userfaultfd", 1),
        "keyring": lambda: call("keyctl", 0, 0, 0),
        "another kernel": lambda: call("kexec_load", 0, 0, 0, 0),
        "handles of files": lambda: call("open_by_handle_at", 0, 0, 0),
        "foreign call numbers": foreign_numbers,
        "device node": device,
        "root": become_root,
        "a program with its owner's rights": lambda: program_with_its_owners_rights(True),
        "a program with its group's rights": lambda: program_with_its_owners_rights(False),
        "kernel settings": lambda: write("/proc/sys/kernel/core_pattern"),
        "other kernel settings": lambda: first_that(open_setting, kernel_files()),
        "who may read a kernel file": lambda: first_that(same_mode, kernel_files()),
        "who may use a device": lambda: first_that(same_mode, DEVICES),
        "who may run a program": lambda: first_that(same_mode, ["/usr/bin/env", "/etc/passwd", "/usr"]),
        "magic keys": lambda: write("/proc/sysrq-trigger"),
        "killing the first process": kill_first,
        "tracing the first process": lambda: trace(1),
        "memory of the first process": lambda: open("/proc/1/mem", "rb").close() or "open",
        "a descriptor of the first process": lambda: os.readlink("/proc/1/fd/0"),
        "variables of the first process": lambda: open("/proc/1/environ", "rb").close() or "open",
        "taking a descriptor": take_a_descriptor,
        "docker socket": lambda: unix("/var/run/docker.sock"),
        "docker socket in /run": lambda: unix("/run/docker.sock"),
        "a program of the system": lambda: write("/usr/bin/env"),
        "a file of /etc": lambda: write("/etc/passwd"),
        "a new file in /etc": lambda: create_in("/etc"),
        "a new program": lambda: create_in("/usr/bin"),
        "the root directory": lambda: create_in("/"),
        "the first program": lambda: write("/run/bot-bottle/inside/init.py"),
        "the sockets' directory": lambda: create_in("/run/bot-bottle/sockets"),
        "removing a socket": lambda: os.unlink("/run/bot-bottle/sockets/proxy.sock"),
        "the live configuration": lambda: create_in("/etc/bot-bottle/current-config"),
        "the trusted roots": lambda: create_in("/etc/bot-bottle/ca"),
    }
    for port in given.get("ports", []):
        tries[f"host loopback port {port}"] = lambda port=port: tcp("127.0.0.1", port)
        tries[f"host loopback port {port} by ipv6"] = lambda port=port: tcp("::1", port)
        for address in given.get("addresses", []):
            tries[f"{address}:{port}"] = lambda address=address, port=port: tcp(address, port)
    for address in given.get("gateways", []):
        tries[f"gateway {address}"] = lambda address=address: route(socket.AF_INET, (address, 53))
    for path in given.get("sockets", []):
        tries[f"socket {path}"] = lambda path=path: unix(path)
    for name in given.get("abstract", []):
        tries[f"abstract socket {name}"] = lambda name=name: unix(f"\0{name}")
    for path in given.get("hidden", []):
        tries[f"hidden {path}"] = lambda path=path: look(path)
    for path in given.get("readonly", []):
        tries[f"writing {path}"] = lambda path=path: write(path)
    for pid in given.get("pids", []):
        tries[f"signal to {pid}"] = lambda pid=pid: signal_outside(pid)
        tries[f"tracing {pid}"] = lambda pid=pid: trace(pid)
    return tries


def answer(port):
    """What the bridge's other end says."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: supervise\r\nConnection: close\r\n\r\n")
        return connection.recv(4096).decode("latin-1")


def facts():
    with open("/proc/self/status") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    names = ("CapEff", "CapPrm", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
    return {name: status[name] for name in names} | {
        "descriptors": sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1],
        "interfaces": [name for _, name in socket.if_nameindex()],
        "uid": os.getuid(),
        "gid": os.getgid(),
    }


def main():
    given = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    result = {"facts": facts(), "refused": {}, "open": {}, "answers": {}}
    for name, attempt in attempts(given).items():
        try:
            result["open"][name] = str(attempt())
        except OSError as error:
            result["refused"][name] = f"{errno.errorcode.get(error.errno, error.errno)}"
    for port in given.get("talk", [9101, 9100]):
        try:
            result["answers"][str(port)] = answer(port)
        except OSError as error:
            result["answers"][str(port)] = f"nothing: {error}"
    print(json.dumps(result))  # noqa: T201


if __name__ == "__main__":
    main()
