"""A database that is held keeps its log when everybody else has closed it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from botbottle.database.holder import keep_open


def write(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE IF NOT EXISTS notes (text)")
        database.execute("INSERT INTO notes VALUES ('one')")


def test_its_log_stays_while_it_is_held_and_nobody_is_held_up(tmp_path: Path) -> None:
    path = tmp_path / "notes.sqlite3"
    write(path)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    with keep_open(path):
        write(path)
        assert {entry.name for entry in tmp_path.iterdir()} == {
            path.name,
            f"{path.name}-wal",
            f"{path.name}-shm",
        }
        write(path)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_database_elsewhere_is_left_alone(tmp_path: Path) -> None:
    with keep_open(tmp_path / "none.sqlite3"):
        assert list(tmp_path.iterdir()) == []
