"""Turns a plan into bubblewrap's arguments: a local bottle sees little of the host, and only read-only.

The command line reveals nothing: arguments, files and variables are passed through descriptors.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from botbottle import inside
from botbottle.backends import seccomp
from botbottle.core.interpreter import compiled, host_interpreter
from botbottle.core.plan_types import (
    HOME_INSIDE,
    INIT_INSIDE,
    PROGRAMS_INSIDE,
    TRUST_INSIDE,
    UID_INSIDE,
    USER_INSIDE,
    BackendError,
    Mount,
    Plan,
)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


INIT, BRIDGE = inside.DIRECTORY / "init.py", inside.DIRECTORY / "bridge.py"
CONFINED = _words(
    "--unshare-user --unshare-ipc --unshare-pid --unshare-net --unshare-uts --unshare-cgroup-try "
    "--disable-userns --cap-drop ALL --die-with-parent --as-pid-1 --clearenv"
)
PROGRAMS = _words("usr bin sbin lib lib32 lib64 libx32")
ETC = _words(
    "alternatives debian_version fonts ld.so.cache ld.so.conf ld.so.conf.d localtime mime.types os-release "
    "perl protocols services timezone"
)
ETC_BEGINNINGS = ("java-", "python3")
OURS = _words("proc dev sys tmp run home root etc var workspace")
OURS_IN_ETC = _words("passwd group hosts hostname nsswitch.conf resolv.conf ssl pki bot-bottle")
BUNDLE_PLACES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)
COPIED_BYTES = 256 * 1024  # smaller files are copied into the bottle: quicker than a mount each
JAVA_PLACE = "/etc/ssl/certs/java/cacerts"


class Box:
    """Arguments for bubblewrap, and the descriptors they refer to."""

    def __init__(self) -> None:
        self.arguments: list[str] = []
        self.fds: list[int] = []

    def add(self, *words: str) -> None:
        self.arguments += words

    def data(self, content: bytes, name: str = "bottle") -> str:
        """Return the number of a descriptor with this content, which can be read once."""
        fd = os.memfd_create(name)
        self.fds.append(fd)
        with open(fd, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(fd, 0, os.SEEK_SET)
        return str(fd)

    def file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        self.add("--perms", f"{mode:04o}", "--file", self.data(content), path)

    def show(self, source: Path, target: str) -> None:
        """Show a path read-only. A link stays a link, so that it cannot lead out of where it was found."""
        try:
            facts = source.lstat()
        except OSError:
            return
        kind = facts.st_mode
        if stat.S_ISLNK(kind):
            self.add("--symlink", str(source.readlink()), target)
        elif stat.S_ISREG(kind) and facts.st_size <= COPIED_BYTES and os.access(source, os.R_OK):
            self.file(target, source.read_bytes(), stat.S_IMODE(kind) & 0o555)
        elif stat.S_ISDIR(kind) or stat.S_ISREG(kind):
            self.add("--ro-bind", str(source), target)

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds = []


def interpreter_inside(plan: Plan) -> str:
    if not plan.image:
        return host_interpreter()
    for path in ("/usr/local/bin/python3", "/usr/bin/python3"):
        if os.path.lexists(f"{plan.image}{path}"):
            return path
    raise BackendError(
        f"{plan.image} has no python3, which a bottle's first program needs: install it there."
    )


def first_program(plan: Plan) -> list[str]:
    """The interpreter and init.py as the bottle sees them."""
    program = f"{INIT_INSIDE}c" if _has_our_interpreter(plan) else INIT_INSIDE
    return [interpreter_inside(plan), "-I", "-S", program]


def _has_our_interpreter(plan: Plan) -> bool:
    """Whether byte code works in the bottle: an image's interpreter may be another version."""
    return not plan.image and compiled(INIT) != INIT and compiled(BRIDGE) != BRIDGE


def fill(box: Box, plan: Plan) -> None:
    """Add everything but the command. Raises BackendError."""
    box.add(*CONFINED, "--uid", str(UID_INSIDE), "--gid", str(UID_INSIDE), "--hostname", plan.slug)
    box.add("--seccomp", box.data(seccomp.cbpf()))
    _root(box, plan)
    _etc(box, plan)
    _own(box, plan)
    for mount in sorted(plan.mounts, key=lambda mount: mount.target.count("/")):
        _mount(box, mount, plan)
    for file in plan.files:
        _outside_of_mounts(file.path, plan)
        _not_by_a_link(file.path, plan)
        box.file(file.path, file.content.encode(), file.mode)
    box.add("--remount-ro", "/", "--chdir", plan.workdir)


def _root(box: Box, plan: Plan) -> None:
    base = Path(plan.image or "/")
    if not base.is_dir():
        raise BackendError(f"image: {base} is not a directory with a root filesystem.")
    names = [name for name in os.listdir(base) if name not in OURS] if plan.image else PROGRAMS  # noqa: PTH208
    for name in sorted(names):
        box.show(base / name, f"/{name}")
    if not plan.image and not host_interpreter().startswith("/usr/"):
        box.add("--ro-bind", sys.base_prefix, sys.base_prefix)


def _etc(box: Box, plan: Plan) -> None:
    base = Path(plan.image or "/") / "etc"
    if base.is_dir() and not base.is_symlink():
        for name in sorted(os.listdir(base)):  # noqa: PTH208
            public = name in ETC or name.startswith(ETC_BEGINNINGS)
            if name not in OURS_IN_ETC and (plan.image or public):
                box.show(base / name, f"/etc/{name}")
        if not (base / "ssl").is_symlink():
            box.show(base / "ssl" / "openssl.cnf", "/etc/ssl/openssl.cnf")
    shell = "/bin/bash" if os.path.lexists(f"{plan.image}/bin/bash") else "/bin/sh"
    user, uid = USER_INSIDE, UID_INSIDE
    nobody = "nobody:x:65534:65534:nobody:/:/usr/sbin/nologin"
    passwd = (
        f"root:x:0:0:root:/:/usr/sbin/nologin\n{user}:x:{uid}:{uid}:{user}:{HOME_INSIDE}:{shell}\n{nobody}\n"
    )
    box.file("/etc/passwd", passwd.encode())
    box.file("/etc/group", f"root:x:0:\n{user}:x:{uid}:\nnogroup:x:65534:\n".encode())
    box.file("/etc/hosts", f"127.0.0.1 localhost {plan.slug}\n::1 localhost\n".encode())
    box.file("/etc/hostname", f"{plan.slug}\n".encode())
    box.file("/etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files\n")
    box.file("/etc/resolv.conf", b"")  # there is no DNS: the proxy resolves
    for place in BUNDLE_PLACES:
        box.add("--symlink", f"{TRUST_INSIDE}/bundle.pem", place)
    box.add("--symlink", f"{TRUST_INSIDE}/truststore.p12", JAVA_PLACE)


def _own(box: Box, plan: Plan) -> None:
    """Add what is new in each bottle: its processes, devices, temporary files and home."""
    size = ["--size", str(plan.limits.memory)] if plan.limits.memory else []
    box.add("--proc", "/proc", "--dev", "/dev")
    box.add("--perms", "1777", *size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev")  # noqa: S108
    _cover_kernel_files(box)
    box.add("--symlink", "/tmp", "/var/tmp")  # noqa: S108
    box.add("--perms", "1777", *size, "--tmpfs", "/tmp")  # noqa: S108
    box.add("--perms", "0700", *size, "--tmpfs", HOME_INSIDE)
    box.show(INIT, INIT_INSIDE)
    if _has_our_interpreter(plan):
        box.show(compiled(INIT), f"{INIT_INSIDE}c")
        box.show(compiled(BRIDGE), f"{PROGRAMS_INSIDE}/bridge.pyc")
    else:
        box.show(BRIDGE, f"{PROGRAMS_INSIDE}/bridge.py")


def _cover_kernel_files(box: Box) -> None:
    """Protect kernel files in /proc: where the operator is root, the agent owns them, whatever its uid.

    It could set /proc/sys/kernel/core_pattern, or change the mode of /proc/cpuinfo on the host. So all of
    /proc becomes read-only then, and files that only root may read are hidden.
    """
    if os.geteuid() != 0:
        box.add("--ro-bind", "/proc/sys", "/proc/sys")
        return
    with os.scandir("/proc") as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if not entry.name.isdigit() and entry.is_file() and not entry.stat().st_mode & 0o004:
                box.add("--ro-bind", "/dev/null", entry.path)
    box.add("--remount-ro", "/proc")


def _mount(box: Box, mount: Mount, plan: Plan) -> None:
    if not os.path.exists(mount.source):  # noqa: PTH110
        raise BackendError(
            f"{mount.source}, which {plan.slug} sees as {mount.target}, is not there. "
            "Create it; what belongs to the bottle itself is made while `manage.py up` runs."
        )
    _outside_of_mounts(mount.target, plan)
    _not_by_a_link(mount.target, plan)
    box.add("--bind" if mount.writable else "--ro-bind", mount.source, mount.target)


def _outside_of_mounts(path: str, plan: Plan) -> None:
    """Raises BackendError for a path below a mount: bubblewrap would follow the agent's links in it."""
    for mount in plan.mounts:
        if path != mount.target and path.startswith(f"{mount.target.rstrip('/')}/"):
            raise BackendError(
                f"{path} lies inside of the mount {mount.target}: choose a place outside of it."
            )


def _not_by_a_link(path: str, plan: Plan) -> None:
    """Raises BackendError for a path that leads over a link of the image.

    The link would be followed while the host's files are still reachable, and bubblewrap would create a
    missing target there, with the operator's rights.
    """
    top, *below = path.strip("/").split("/")
    own = below[:1] and below[0] in OURS_IN_ETC if top == "etc" else top in OURS
    if own or not plan.image:
        return  # we show nothing of the image there
    place = Path(plan.image)
    for name in (top, *below):
        place /= name
        if place.is_symlink():
            raise BackendError(
                f"{path} leads over a link of the image, {place}: choose a place in the bottle without one, "
                "such as one below /mnt that the image does not have."
            )


def environment(values: dict[str, str]) -> bytes:
    """Variables in the kernel's format: NAME=value, each ended by a NUL. Never log the result."""
    for name, value in values.items():
        if "\0" in value:
            raise BackendError(f"env.{name}: a variable cannot hold a NUL byte. Clean its source.")
    return b"".join(os.fsencode(f"{name}={value}\0") for name, value in values.items())
