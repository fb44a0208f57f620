"""Images for tests, made of what is installed: busybox, the tests' own interpreter, curl. No registry."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path

import docker

PYTHON_IMAGE = "localhost/bottle-python:test"
SHELL_IMAGE = "localhost/bottle-shell:test"  # no python3 in it
APPLETS = (
    "sh cat echo env false grep head id kill ln ls mkdir mount ps rm sleep stat stty tail test touch true"
)
LEFT_OUT = {"__pycache__", "site-packages", "test", "tests", "idlelib", "tkinter", "ensurepip", "lib2to3"}
PASSWORDS = "root:x:0:0:root:/root:/bin/sh\n"


def shell_image(client: docker.DockerClient) -> None:
    with io.BytesIO() as archive:
        with tarfile.open(fileobj=archive, mode="w") as tar:
            _add_shell(tar)
        _import(client, archive.getvalue(), SHELL_IMAGE)


def python_image(client: docker.DockerClient) -> None:
    with io.BytesIO() as archive:
        with tarfile.open(fileobj=archive, mode="w") as tar:
            _add_shell(tar)
            _add_python(tar)
            programs = [path for path in (shutil.which("curl"), shutil.which("ip")) if path]
            for program in programs:
                tar.add(Path(program).resolve(), f"usr/bin/{Path(program).name}")
            _add_libraries(tar, [*programs, *_python_binaries()])
        _import(client, archive.getvalue(), PYTHON_IMAGE)


def _import(client: docker.DockerClient, archive: bytes, name: str) -> None:
    repository, tag = name.rsplit(":", 1)
    client.api.import_image_from_data(archive, repository=repository, tag=tag)


def _add_shell(tar: tarfile.TarFile) -> None:
    for directory in ("bin", "etc", "home", "proc", "dev", "sys", "tmp", "run", "usr/bin", "workspace"):
        entry = tarfile.TarInfo(directory)
        entry.type, entry.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(entry)
    tar.add(str(shutil.which("busybox")), "bin/busybox")
    for applet in APPLETS.split():
        entry = tarfile.TarInfo(f"bin/{applet}")
        entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
        tar.addfile(entry)
    entry = tarfile.TarInfo("etc/passwd")
    entry.size = len(PASSWORDS)
    tar.addfile(entry, io.BytesIO(PASSWORDS.encode()))


def _add_python(tar: tarfile.TarFile) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    tar.add(Path(sys.base_prefix, "bin", version).resolve(), "usr/local/bin/python3")
    tar.add(Path(os.__file__).parent, f"usr/local/lib/{version}", filter=_wanted)


def _wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    name = Path(entry.name).name
    if name in LEFT_OUT or name.startswith("config-3"):
        return None
    entry.uid = entry.gid = 0
    return entry


def _python_binaries() -> list[str]:
    library = Path(os.__file__).parent
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return [str(Path(sys.base_prefix, "bin", version)), *map(str, library.glob("lib-dynload/*.so"))]


def _add_libraries(tar: tarfile.TarFile, programs: Iterable[str]) -> None:
    """At the names the loader looks for; those outside its usual places go into one."""
    output = subprocess.run(
        ["ldd", *programs], capture_output=True, text=True, check=False, timeout=60
    ).stdout
    for path in sorted(set(re.findall(r"(/\S+) \(0x", output))):
        usual = path.startswith(("/lib", "/usr/lib"))
        tar.add(Path(path).resolve(), path.lstrip("/") if usual else f"usr/lib/{Path(path).name}")
