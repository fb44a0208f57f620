"""A root filesystem is unpacked inside a sandbox: whatever the archive holds, nothing outside changes."""

from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path

import pytest

from botbottle.backends import image_builders
from botbottle.backends.base import Unavailable
from botbottle.backends.local import rootfs_build
from botbottle.core.plan_types import BackendError
from tests.support.requirements import require

pytestmark = pytest.mark.process


def archive(*entries: tuple[str, bytes, str]) -> list[bytes]:
    """Each a name, a tar type and its content or target."""
    with io.BytesIO() as file:
        with tarfile.open(fileobj=file, mode="w") as tar:
            for name, kind, content in entries:
                entry = tarfile.TarInfo(name)
                entry.type, entry.mode, entry.uid = kind, 0o4755, 4242
                entry.devmajor, entry.devminor = 1, 3
                if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
                    entry.linkname = content
                    tar.addfile(entry)
                else:
                    entry.size = len(content)
                    tar.addfile(entry, io.BytesIO(content.encode()))
        return [file.getvalue()]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    require(shutil.which("bwrap"), "bubblewrap", "apt-get install bubblewrap")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("mine")
    target = tmp_path / "rootfs-1"
    target.mkdir()
    return target


def test_files_and_links_arrive_as_ours_and_without_setuid_bits(target: Path) -> None:
    entries = (("bin/tool", tarfile.REGTYPE, "x"), ("etc/alternative", tarfile.SYMTYPE, "/etc/passwd"))
    rootfs_build._unpack(archive(*entries), target)
    found = (target / "bin" / "tool").stat()
    assert (target / "bin" / "tool").read_text() == "x"
    assert found.st_uid == target.stat().st_uid
    assert not found.st_mode & 0o6000
    assert str((target / "etc" / "alternative").readlink()) == "/etc/passwd"


@pytest.mark.parametrize("link", ["{outside}", "../outside"])
def test_no_link_leads_out(target: Path, link: str) -> None:
    outside = target.parent / "outside"
    entries = (
        ("way", tarfile.SYMTYPE, link.format(outside=outside)),
        ("way/file", tarfile.REGTYPE, "theirs"),
        ("way/new", tarfile.REGTYPE, "theirs"),
    )
    try:
        rootfs_build._unpack(archive(*entries), target)
    except BackendError:
        assert not target.exists()
    assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("file", "mine")]


@pytest.mark.parametrize(
    "entry",
    [
        ("../escaped", tarfile.REGTYPE, "theirs"),
        ("hard", tarfile.LNKTYPE, "../outside/file"),
        ("device", tarfile.CHRTYPE, ""),
    ],
)
def test_what_does_not_belong_there_is_refused(target: Path, entry: tuple[str, bytes, str]) -> None:
    with pytest.raises(BackendError, match="could not be unpacked"):
        rootfs_build._unpack(archive(("ok", tarfile.REGTYPE, "x"), entry), target)
    assert not target.exists()
    assert sorted(path.name for path in target.parent.iterdir()) == ["outside"]


def test_without_an_engine_it_says_why_it_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    with pytest.raises(Unavailable, match=r"rebuilt by a Docker engine, and there is none here.*docker\.io"):
        image_builders.images("local", tmp_path, "demo").build("FROM x\n", lambda _: None, image="")
    with pytest.raises(Unavailable, match="are not rebuilt"):
        image_builders.images("smolmachines", tmp_path, "demo")


def test_a_directory_counts_only_for_the_text_it_was_made_from(target: Path) -> None:
    with pytest.raises(BackendError, match="was not built from the approved"):
        rootfs_build.verify(str(target), "digest")
    rootfs_build._marker(target).write_text("digest")
    rootfs_build.verify(str(target), "digest")
    rootfs_build._marker(target, "sources").write_text("a:1=sha256:1")
    assert rootfs_build._sources(str(target)) == {"a:1": "sha256:1"}
    assert rootfs_build._sources("") == rootfs_build._sources(str(target.parent)) == {}
    other = target.with_name("rootfs-2")
    other.mkdir()
    rootfs_build.prune(target.parent, {str(other)})
    assert sorted(path.name for path in target.parent.iterdir()) == ["outside", "rootfs-2"]
