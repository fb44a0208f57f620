"""pip and npm against a local index and registry behind the proxy."""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import json
import sys
import tarfile
import zipfile

import pytest

from tests.support.tool_env import BARE, INSPECTED, Bottle, Finished
from tests.support.tool_upstreams import Request

pytestmark = [pytest.mark.process, pytest.mark.tools]
WHEEL = "tiny-1.0-py3-none-any.whl"


@functools.cache
def wheel() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("tiny.py", "answer = 42\n")
        archive.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr(
            "tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny-1.0.dist-info/RECORD", "")
    return content.getvalue()


@functools.cache
def tarball() -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, text in {
            "package.json": json.dumps({"name": "tiny", "version": "1.0.0", "main": "index.js"}),
            "index.js": "module.exports = 42;\n",
        }.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return content.getvalue()


@pytest.fixture(params=[INSPECTED, BARE])
def host(bottle: Bottle, request: pytest.FixtureRequest) -> str:
    """Where packages are served: `tiny` is all there is."""
    package, archive = wheel(), tarball()

    def index(asked: Request) -> None:
        digest = hashlib.sha256(package).hexdigest()
        page = f'<!DOCTYPE html><a href="/files/{WHEEL}#sha256={digest}">{WHEEL}</a>'
        asked.answer(page.encode(), "text/html")

    def registry(asked: Request) -> None:
        if asked.path.endswith(".tgz"):
            asked.answer(archive, "application/octet-stream")
            return
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
        dist = {"tarball": f"https://{request.param}/npm/tiny/-/tiny-1.0.0.tgz", "integrity": integrity}
        version = {"name": "tiny", "version": "1.0.0", "description": "a tiny package", "dist": dist}
        document = {"name": "tiny", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
        asked.answer(json.dumps(document).encode())

    def files(asked: Request) -> None:
        asked.answer(package, "application/zip")

    services = bottle.workshop.upstreams[request.param].services
    services |= {"/simple": index, "/npm": registry, "/files": files}
    return str(request.param)


def pip(bottle: Bottle, *arguments: str) -> Finished:
    always = ("--isolated", "--disable-pip-version-check", "--no-input", "--retries", "0")
    # `--isolated` ignores PIP_CERT too.
    return bottle.run(sys.executable, "-m", "pip", *always, "--cert", str(bottle.workshop.bundle), *arguments)


def npm(bottle: Bottle, host: str, *arguments: str) -> Finished:
    registry = f"https://{host}/npm/"
    quiet = ("--no-audit", "--no-fund", "--no-update-notifier", "--fetch-retries=0")
    return bottle.run("npm", *arguments, *quiet, f"--registry={registry}")


@pytest.mark.parametrize("host", [INSPECTED], indirect=True)
def test_pip_downloads_a_package(bottle: Bottle, host: str) -> None:
    done = pip(bottle, "download", "--no-deps", "--index-url", f"https://{host}/simple", "tiny==1.0")
    assert done.code == 0, done.everything
    assert (bottle.home / WHEEL).read_bytes() == wheel()


def test_pip_installs_a_package(bottle: Bottle, host: str) -> None:
    where = ("--target", "installed", "--index-url", f"https://{host}/simple")
    done = pip(bottle, "install", *where, "--no-cache-dir", "--no-compile", "tiny")
    assert done.code == 0, done.everything
    told = bottle.run(sys.executable, "-c", "import tiny; print(tiny.answer)", PYTHONPATH="installed")
    assert told.out == "42\n", told.everything
    assert bottle.workshop.upstreams[host].seen == ["GET /simple/tiny/", f"GET /files/{WHEEL}"]


def test_npm_views_and_installs_a_package(bottle: Bottle, host: str) -> None:
    assert npm(bottle, host, "view", "tiny", "version").out.strip() == "1.0.0"
    done = npm(bottle, host, "install", "tiny")
    assert done.code == 0, done.everything
    assert (bottle.home / "node_modules" / "tiny" / "index.js").read_text() == "module.exports = 42;\n"


@pytest.mark.parametrize("host", [INSPECTED], indirect=True)
def test_pip_shows_the_refusal(bottle: Bottle, host: str) -> None:
    done = pip(bottle, "download", "--no-deps", f"https://{host}/private/{WHEEL}")
    assert (done.code, "403 Client Error: Forbidden" in done.err) == (1, True), done.everything
    assert bottle.workshop.upstreams[host].seen == []


@pytest.mark.parametrize("host", [INSPECTED], indirect=True)
def test_npm_shows_the_refusal(bottle: Bottle, host: str) -> None:
    done = bottle.run("npm", "view", "tiny", f"--registry=https://{host}/private/", "--fetch-retries=0")
    assert done.code != 0
    assert "E403" in done.err
    assert "egress-refused" in done.err
    assert bottle.workshop.upstreams[host].seen == []
