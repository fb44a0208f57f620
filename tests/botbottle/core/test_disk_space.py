"""How much room there is, what a bottle takes of it, and the database's reserve."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, time
from typing import Any

import pytest
from django.db import connection

from botbottle.core import disk_space
from botbottle.core.disk_space import MIB, Room
from botbottle.core.disk_usage import Usage
from botbottle.core.environment import BadSetting
from botbottle.database import reserve as database_reserve
from botbottle.launch import journal
from tests.support.full_disk import AMPLE, SHORT, no_room, pretend

LARGE = 10**12


@pytest.mark.parametrize(
    ("room", "short", "ample"),
    [
        (Room(LARGE, LARGE), False, True),
        (Room(128 * MIB, LARGE), False, False),
        (Room(128 * MIB - 1, LARGE), True, False),
        (Room(0, LARGE), True, False),
        (Room(6 * MIB, 96 * MIB), False, False),
        (Room(6 * MIB - 1, 96 * MIB), True, False),
        (Room(12 * MIB, 96 * MIB), False, True),
        (Room(LARGE, LARGE, files=999), True, False),
        (Room(LARGE, LARGE, files=1999), False, False),
        (Room(LARGE, LARGE, files=2000), False, True),
    ],
)
def test_a_disk_is_short_by_a_part_of_its_size_or_by_files(room: Room, short: bool, ample: bool) -> None:
    assert (room.is_short, room.is_ample) == (short, ample)


def test_what_is_short_is_said() -> None:
    assert Room(1_500_000, 96 * MIB).describe() == "1.5 MB of 101 MB are free"
    assert Room(LARGE, LARGE, files=3).describe() == "only 3 more files can be made"
    sizes = [0, 999, 1000, 999_499, 999_600, 1_500_000_000, 2 * 10**12, 10**16]
    words = ["0 bytes", "999 bytes", "1 kB", "999 kB", "1 MB", "1.5 GB", "2 TB", "1e+04 TB"]
    assert [disk_space.size(count) for count in sizes] == words


def test_a_full_disk_is_named_at_the_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend(monkeypatch, AMPLE)
    disk_space.refuse_a_full_disk(tmp_path)
    pretend(monkeypatch, SHORT)
    with pytest.raises(
        BadSetting, match=r"The disk is full: in the file system of .*0 bytes of 10 TB are free"
    ):
        disk_space.refuse_a_full_disk(tmp_path)


# --- the journal


def test_what_happened_to_a_bottle_is_left_out_of_a_journal_without_room_but_no_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "write", no_room)
    for what in (journal.STOPPING, journal.ENDED, journal.USED, journal.FAILED, journal.STARTED):
        journal.append(tmp_path, what, who="olivia")
    with pytest.raises(OSError, match="No space left"):
        journal.append(tmp_path, journal.STARTING, who="olivia")


def test_other_faults_of_a_journal_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(*_: Any) -> int:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "write", broken)
    with pytest.raises(OSError, match="broken"):
        journal.append(tmp_path, journal.STOPPING, who="olivia")


# --- what a bottle takes


def usage(tmp_path: Path, *, since: float = 0.0, seconds: float = 60.0) -> Usage:
    return Usage(device=tmp_path.stat().st_dev, since=since, until=monotonic() + seconds)


def write(path: Path, size: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def test_blocks_are_counted_once_and_links_are_not_followed(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    file = write(inside / "deep" / "file", MIB)
    os.link(file, inside / "another name")
    (inside / "link").symlink_to(outside)
    write(outside / "file", MIB)
    with (inside / "sparse").open("wb") as sparse:
        sparse.truncate(100 * MIB)
    found = usage(tmp_path)
    found.add_directory(str(inside))
    assert MIB <= found.total < 1.1 * MIB
    assert (found.is_complete, found.hides) == (True, False)


def test_only_what_changed_lately_is_recent(tmp_path: Path) -> None:
    write(tmp_path / "file", MIB)
    os.utime(tmp_path / "file", (0, 0))  # an agent may set this one
    now, later = usage(tmp_path, since=time() - 60), usage(tmp_path, since=time() + 60)
    for found in (now, later):
        found.add_directory(str(tmp_path))
    assert now.recent >= MIB > later.recent == 0
    assert now.total == later.total


def test_other_file_systems_are_left_out(tmp_path: Path) -> None:
    found = Usage(device=-1, since=0.0, until=monotonic() + 60)
    write(tmp_path / "file", MIB)
    found.add_directory(str(tmp_path))
    assert found.total == 0


def test_a_deleted_file_that_is_held_open_counts(tmp_path: Path) -> None:
    with (tmp_path / "gone").open("wb") as file:
        file.write(b"x" * MIB)
        file.flush()
        (tmp_path / "gone").unlink()
        found = usage(tmp_path)
        found.add_deleted_files_of(os.getpid())
        once = found.total
        found.add_deleted_files_of(os.getpid())
    assert once >= MIB
    assert found.total == once


def test_a_measurement_ends_in_time_and_says_that_it_is_not_the_whole(tmp_path: Path) -> None:
    write(tmp_path / "file", MIB)
    found = usage(tmp_path, seconds=-1)
    found.add_directory(str(tmp_path))
    assert (found.total, found.is_complete, found.hides) == (0, False, False)


def test_what_cannot_be_looked_into_is_said(tmp_path: Path) -> None:
    before = os.open(".", os.O_RDONLY)
    try:
        os.chdir(tmp_path)
        for _ in range(20):  # longer than any path may be
            Path("d" * 250).mkdir()
            os.chdir("d" * 250)
        found = usage(tmp_path)
        found.add_directory(str(tmp_path))
        assert (found.is_complete, found.hides) == (False, True)
    finally:
        os.chdir(before)
        os.close(before)


def test_a_directory_that_went_away_hides_nothing(tmp_path: Path) -> None:
    found = usage(tmp_path)
    found.add_directory(str(tmp_path / "gone"))
    assert (found.total, found.is_complete, found.hides) == (0, True, False)


# --- the reserve


@pytest.fixture
def reserve(transactional_db: None) -> Iterator[None]:
    yield
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE IF EXISTS {database_reserve.TABLE}")


def rows() -> int:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {database_reserve.TABLE}")
        return int(cursor.fetchone()[0])


def test_the_reserve_is_kept_released_for_new_rows_and_kept_again(reserve: None) -> None:
    assert not database_reserve.release()
    database_reserve.fill()
    database_reserve.fill()
    assert rows() == database_reserve.ROWS
    log = Path(f"{connection.settings_dict['NAME']}-wal")
    assert log.stat().st_size >= database_reserve.LOG_BYTES
    assert log.stat().st_blocks * 512 >= database_reserve.LOG_BYTES, "it has its blocks"
    assert database_reserve.release()
    assert rows() == 0
    assert database_reserve.left() >= database_reserve.ROWS * MIB
    assert not database_reserve.release()
    database_reserve.fill()
    assert rows() == database_reserve.ROWS


def test_after_a_shortage_the_reserve_is_needed_until_it_is_kept_again(
    reserve: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left of it would be filled, and the disk could become short again."""
    between = Room(200 * MIB, LARGE)
    database_reserve.fill()
    needed = []
    for room, released in ((AMPLE, False), (between, False), (SHORT, True), (between, True), (AMPLE, True)):
        pretend(monkeypatch, room)
        if released:
            database_reserve.release()
        needed.append(database_reserve.is_needed())
    assert needed == [False, False, True, True, False]


def test_a_database_of_its_own_machine_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, SHORT)
    assert database_reserve.is_needed()
    monkeypatch.setattr(connection, "vendor", "postgresql")
    assert not database_reserve.is_needed()
    database_reserve.fill()
    assert (database_reserve.release(), database_reserve.left()) == (False, 0)
