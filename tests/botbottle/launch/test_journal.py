"""The journal: whole lines from many writers, read on from where one stopped."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from botbottle.launch import journal
from tests.support import ROOT


def words(reading: journal.Reading) -> list[str]:
    return [entry.what for entry, _ in reading.entries]


def test_it_is_read_on_from_where_the_reader_stopped(tmp_path: Path) -> None:
    assert not journal.exists(tmp_path)
    assert journal.read(tmp_path, 0) == journal.Reading()
    journal.append(tmp_path, journal.STARTING, who="olivia")
    first = journal.read(tmp_path, 0)
    journal.append(tmp_path, journal.ENDED, who="olivia", exit_code=42)
    (_, position) = first.entries[-1]
    ((entry, end),) = journal.read(tmp_path, position).entries
    assert (entry.what, entry.who, entry.exit_code) == ("ended", "olivia", 42)
    assert journal.read(tmp_path, end).entries == ()
    assert stat.S_IMODE((tmp_path / journal.NAME).stat().st_mode) == 0o600


def test_a_journal_that_was_begun_anew_is_read_from_its_beginning(tmp_path: Path) -> None:
    for _ in range(3):
        journal.append(tmp_path, journal.USED, who="olivia")
    position = journal.read(tmp_path, 0).entries[-1][1]
    journal.forget(tmp_path)
    journal.append(tmp_path, journal.STARTING, who="otto")
    assert words(journal.read(tmp_path, position)) == ["starting"]


@pytest.mark.parametrize("torn", ['{"what": "star', "null\n", "[]\n", '{"what": 1}\n', "\xff\n"])
def test_a_torn_line_costs_only_itself(tmp_path: Path, torn: str) -> None:
    journal.append(tmp_path, journal.STARTING, who="olivia")
    with (tmp_path / journal.NAME).open("ab") as file:
        file.write(torn.encode("latin-1"))
    journal.append(tmp_path, journal.ENDED, who="olivia", exit_code=0)
    assert words(journal.read(tmp_path, 0)) == ["starting", "ended"]


def test_a_line_that_is_still_being_written_is_left_for_later(tmp_path: Path) -> None:
    journal.append(tmp_path, journal.STARTING, who="olivia")
    whole = (tmp_path / journal.NAME).read_bytes()
    (tmp_path / journal.NAME).write_bytes(whole[:-1])
    assert words(journal.read(tmp_path, 0)) == []
    (tmp_path / journal.NAME).write_bytes(whole)
    assert words(journal.read(tmp_path, 0)) == ["starting"]


def test_many_writers_lose_nothing(tmp_path: Path) -> None:
    def write() -> None:
        for _ in range(50):
            journal.append(tmp_path, journal.USED, who="olivia", text="x" * 3000)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert words(journal.read(tmp_path, 0)) == ["used"] * 200


def test_an_entry_knows_whether_its_writer_lives(tmp_path: Path) -> None:
    program = "import sys; from pathlib import Path; from botbottle.launch import journal\n"
    program += "journal.append(Path(sys.argv[1]), 'starting', who='x')"
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, check=True, timeout=60)
    journal.append(tmp_path, journal.STARTING, who="x")
    theirs, ours = (entry for entry, _ in journal.read(tmp_path, 0).entries)
    assert ours.pid == os.getpid()
    assert (theirs.writer_lives, ours.writer_lives) == (False, True)
    reused = journal.Entry("starting", "x", 0.0, os.getpid(), "1")  # our number, another process
    assert not reused.writer_lives
