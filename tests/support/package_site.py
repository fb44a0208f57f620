"""One host that is a package index, an npm registry and a git server, from files made on first use."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import subprocess
import tempfile
from pathlib import Path

from botbottle.demo.internet import Site
from tests.tools.test_packages import WHEEL, tarball, wheel

INDEX = "packages.example.com"


class PackageSite(Site):
    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        found = _files().get(path) or _repository_file(path)
        if found is None:
            self.answer(404, b"{}", "application/json")
        else:
            self.answer(200, *found)


@functools.cache
def _files() -> dict[str, tuple[bytes, str]]:
    package, archive = wheel(), tarball()
    digest = hashlib.sha256(package).hexdigest()
    page = f'<!DOCTYPE html><a href="/files/{WHEEL}#sha256={digest}">{WHEEL}</a>'.encode()
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
    dist = {"tarball": f"https://{INDEX}/npm/tiny/-/tiny-1.0.0.tgz", "integrity": integrity}
    version = {"name": "tiny", "version": "1.0.0", "description": "a tiny package", "dist": dist}
    document = {"name": "tiny", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    return {
        "/simple/tiny/": (page, "text/html"),
        f"/files/{WHEEL}": (package, "application/zip"),
        "/npm/tiny": (json.dumps(document).encode(), "application/json"),
        "/plain": (b"plain text\n", "text/plain"),
    }


def _repository_file(path: str) -> tuple[bytes, str] | None:
    """git's plain-file protocol: enough to clone."""
    if not path.startswith("/git/"):
        return None
    root = Path(_repository().name).resolve()
    file = (root / path.removeprefix("/git/")).resolve()
    if not file.is_relative_to(root) or not file.is_file():
        return None
    return file.read_bytes(), "application/octet-stream"


@functools.cache
def _repository() -> tempfile.TemporaryDirectory[str]:
    directory = tempfile.TemporaryDirectory(prefix="repository-")
    work, bare = Path(directory.name) / "work", Path(directory.name) / "tiny.git"
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.com")
    for command in (
        ("git", "init", "--quiet", "--initial-branch=main", str(work)),
        ("git", *identity, "-C", str(work), "commit", "--quiet", "--allow-empty", "-m", "the first commit"),
        ("git", "clone", "--quiet", "--bare", str(work), str(bare)),
        ("git", "-C", str(bare), "update-server-info"),
    ):
        subprocess.run(command, check=True, capture_output=True)
    return directory
