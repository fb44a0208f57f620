"""A file is replaced whole, or overwritten where the disk has no room for a new one."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from botbottle.core.files import write_atomically
from tests.support.full_disk import without_new_files


def test_a_file_is_replaced_whole_and_private(tmp_path: Path) -> None:
    target = tmp_path / "routes.yaml"
    target.write_text("old")
    target.chmod(0o644)
    with target.open() as reader:
        write_atomically(target, "new ü")
        assert reader.read() == "old"
    assert target.read_text(encoding="utf-8") == "new ü"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["routes.yaml"]


def test_a_file_for_others_has_the_mode_it_is_given(tmp_path: Path) -> None:
    write_atomically(tmp_path / "allowlist", "a.com", mode=0o644, synced=False)
    assert stat.S_IMODE((tmp_path / "allowlist").stat().st_mode) == 0o644


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    target = tmp_path / "routes.yaml"
    target.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(target, "half \ud800")
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["routes.yaml"]


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "absent" / "routes.yaml", "x")


# --- without room on the disk


@pytest.mark.parametrize("text", ["new", "as long as before\n", ""])
def test_without_room_a_file_is_overwritten_and_padded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    path = tmp_path / "routes.yaml"
    path.write_text("as long as before\n")
    inode = path.stat().st_ino
    without_new_files(monkeypatch)
    write_atomically(path, text, also_when_full=True)
    assert path.read_text() == text.ljust(18, "\n")
    assert (path.stat().st_ino, [entry.name for entry in tmp_path.iterdir()]) == (inode, ["routes.yaml"])


def test_without_room_for_a_longer_text_the_file_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "routes.yaml"
    path.write_text("short\n")
    without_new_files(monkeypatch)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, "longer than that\n", also_when_full=True)
    assert path.read_text() == "short\n"


def test_only_a_file_that_may_be_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ca.pem"
    path.write_text("before\n")
    without_new_files(monkeypatch)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, "after\n")
    with pytest.raises(OSError, match="No space"):
        write_atomically(tmp_path / "new", "after\n", also_when_full=True)
    assert (path.read_text(), [entry.name for entry in tmp_path.iterdir()]) == ("before\n", ["ca.pem"])
