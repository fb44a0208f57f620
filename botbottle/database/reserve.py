"""Reserves room inside the database's own files, so that operators can decide while the disk is full.

For SQLite only. A table of zeros is emptied when the disk is short, and the database writes new rows into its
pages. The write-ahead log is created at its full length. No other program can take this room, as it could
take that of a deleted reserve file.
"""

from __future__ import annotations

import os
from pathlib import Path

from django.conf import settings
from django.db import connection, transaction

from botbottle.core import disk_space
from botbottle.core.disk_space import MIB

TABLE = "reserved_space"
ROWS = 8  # of 1 MiB each
# Its index, which lies in shared memory and has to grow with it, is large enough for 4,062 pages.
LOG_BYTES = 16 * MIB
BYTES = ROWS * MIB + LOG_BYTES


def is_needed() -> bool:
    """Whether only operators' decisions may be written, because the database's disk is short.

    Also afterwards, until there is room to restore the reserve: new rows would use what is left of it.
    """
    if not _is_in_a_file():
        return False
    room = disk_space.room_in(Path(settings.BOTTLE_HOME))
    return room.is_short or not (room.is_ample or _rows())


def fill() -> None:
    """Create what is missing of the reserve. Raises DatabaseError and OSError."""
    if not _is_in_a_file():
        return
    for _ in range(ROWS - _rows()):
        _add_a_row()
    _lengthen_the_log()


def _add_a_row() -> None:
    """Add a row in its own transaction, so that others wait only briefly and memory use stays small."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE IF NOT EXISTS {TABLE} (zeros BLOB NOT NULL)")
        cursor.execute(f"INSERT INTO {TABLE} VALUES (zeroblob({MIB}))")  # noqa: S608 - our own words
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA shrink_memory")


def release() -> bool:
    """Free the reserve for the database. Returns False when there is none. Raises DatabaseError."""
    if not _is_in_a_file() or not _rows():
        return False
    with connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {TABLE}")  # noqa: S608 - our own word
    return True


def left() -> int:
    """How many bytes of new rows fit without a longer file. Raises DatabaseError."""
    if not _is_in_a_file():
        return 0
    with connection.cursor() as cursor:
        cursor.execute("SELECT freelist_count * page_size FROM pragma_freelist_count, pragma_page_size")
        return _rows() * MIB + int(cursor.fetchone()[0])


def _is_in_a_file() -> bool:
    return connection.vendor == "sqlite"


def _rows() -> int:
    if TABLE not in connection.introspection.table_names():
        return 0
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {TABLE}")  # noqa: S608 - our own word
        return int(cursor.fetchone()[0])


def _lengthen_the_log() -> None:
    """Lengthen the write-ahead log. SQLite overwrites it from the start and reads only what it wrote itself.

    SQLite does not lock this file, so closing it here releases none of our locks.
    """
    try:
        log = os.open(f"{settings.DATABASES['default']['NAME']}-wal", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:  # nothing was written yet
        return
    try:
        if os.fstat(log).st_size < LOG_BYTES:
            os.posix_fallocate(log, 0, LOG_BYTES)
    finally:
        os.close(log)
