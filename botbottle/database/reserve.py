"""Room inside the database's own files, so that operators can decide while the disk is full.

For SQLite only. A table of zeros is emptied when the disk is short: the database writes new rows into its
pages. The write-ahead log is made as long as it may need to be. Nobody else can take either from us, as they
could take the room of a reserve file that is deleted.
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
    """Whether only what operators decide is to be written: the disk that the database shares is short.

    Also afterwards, until there is room to make the reserve anew: new rows would go into what is left of it.
    """
    if not _is_in_a_file():
        return False
    room = disk_space.room_in(Path(settings.BOTTLE_HOME))
    return room.is_short or not (room.is_ample or _rows())


def keep() -> None:
    """Make what is missing of the reserve. Raises DatabaseError and OSError."""
    if not _is_in_a_file():
        return
    for _ in range(ROWS - _rows()):
        _add_a_row()
    _lengthen_the_log()


def _add_a_row() -> None:
    """In a transaction of its own: nobody waits long for it, and this connection keeps little in memory."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE IF NOT EXISTS {TABLE} (zeros BLOB NOT NULL)")
        cursor.execute(f"INSERT INTO {TABLE} VALUES (zeroblob({MIB}))")  # noqa: S608 - our own words
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA shrink_memory")


def release() -> bool:
    """Give the reserve to the database. False when there is none. Raises DatabaseError."""
    if not _is_in_a_file() or not _rows():
        return False
    with connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {TABLE}")  # noqa: S608 - our own word
    return True


def left() -> int:
    """How many bytes new rows can take without a longer file. Raises DatabaseError."""
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
    """SQLite overwrites it from the beginning, and reads no further than what it has written itself.

    It is no file that SQLite locks: closing it here lets go of none of our locks.
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
