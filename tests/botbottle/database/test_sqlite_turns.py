"""Threads that write to one SQLite file do so in the order in which they came."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connections, transaction

from botbottle.database.sqlite.base import DatabaseWrapper
from botbottle.database.sqlite.turns import Turns, turns_at
from tests.support.timeouts import PATIENCE, wait_until

WRITERS = 16


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "turns.sqlite3"


@pytest.fixture
def turns(path: Path) -> Turns:
    return turns_at(str(path))


@pytest.fixture
def connect(path: Path, db: None) -> Iterator[Callable[..., DatabaseWrapper]]:
    """Another connection to the file. All are closed at the end."""
    made: list[DatabaseWrapper] = []

    def one(**options: Any) -> DatabaseWrapper:
        options = {"timeout": PATIENCE, "transaction_mode": "IMMEDIATE", **options}
        settings = {**connections.configure_settings(None)["default"], "NAME": str(path), "OPTIONS": options}
        made.append(DatabaseWrapper(settings, alias="turns"))
        made[-1].inc_thread_sharing()
        return made[-1]

    with one().cursor() as cursor:
        cursor.execute("CREATE TABLE line (writer INTEGER)")
    yield one
    for connection in made:
        connection.close()


@contextmanager
def in_transaction(connection: DatabaseWrapper) -> Iterator[None]:
    """The outermost atomic block, on a connection that no alias names."""
    connection.set_autocommit(False, force_begin_transaction_with_broken_autocommit=True)
    try:
        yield
        connection.commit()
    except BaseException:
        connection.rollback()
        raise
    finally:
        connection.set_autocommit(True)


def write(connection: DatabaseWrapper, writer: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO line VALUES (%s)", [writer])


def write_in_transaction(connection: DatabaseWrapper, writer: int) -> None:
    with in_transaction(connection):
        write(connection, writer)


def lines(path: Path) -> list[int]:
    connection = sqlite3.connect(path)
    try:
        return [writer for (writer,) in connection.execute("SELECT writer FROM line ORDER BY rowid")]
    finally:
        connection.close()


def waits_as(number: int, turns: Turns, pool: ThreadPoolExecutor, deed: Callable[[], None]) -> Future[None]:
    """Begin in another thread; returns once it is that thread in the queue."""
    begun = pool.submit(deed)
    wait_until(lambda: len(turns) == number, what=f"{number} waiting writers")
    return begun


@pytest.mark.parametrize("deed", [write_in_transaction, write], ids=["transactions", "single statements"])
def test_writers_write_in_the_order_in_which_they_came(
    deed: Callable[[DatabaseWrapper, int], None], connect: Any, path: Path, turns: Turns
) -> None:
    holder = connect()
    with ThreadPoolExecutor(WRITERS) as pool:
        with in_transaction(holder):
            begun = [
                waits_as(number, turns, pool, lambda number=number: deed(connect(), number))
                for number in range(1, WRITERS + 1)
            ]
        for each in begun:
            each.result(PATIENCE)
    assert lines(path) == list(range(1, WRITERS + 1))


def test_a_writer_that_comes_again_is_behind_those_that_wait(connect: Any, path: Path, turns: Turns) -> None:
    greedy = connect()
    with ThreadPoolExecutor(WRITERS) as pool:
        with in_transaction(greedy):
            begun = [
                waits_as(number, turns, pool, lambda number=number: write_in_transaction(connect(), number))
                for number in range(1, WRITERS)
            ]
        write_in_transaction(greedy, WRITERS)
        for each in begun:
            each.result(PATIENCE)
    assert lines(path)[-1] == WRITERS


def test_a_writer_that_waits_too_long_is_told_that_the_database_is_locked(
    connect: Any, path: Path, turns: Turns
) -> None:
    with in_transaction(connect()):
        for deed in (write_in_transaction, write):
            with pytest.raises(OperationalError, match="database is locked"):
                deed(connect(timeout=0.01), 1)
        assert len(turns) == 0
    write_in_transaction(connect(), 2)
    assert lines(path) == [2]


def test_every_way_out_of_a_transaction_gives_the_turn_back(connect: Any, turns: Turns) -> None:
    def failing(connection: DatabaseWrapper) -> None:
        with pytest.raises(ZeroDivisionError), in_transaction(connection):
            raise ZeroDivisionError

    def broken_statement(connection: DatabaseWrapper) -> None:
        with pytest.raises(OperationalError), connection.cursor() as cursor:
            cursor.execute("INSERT INTO nowhere VALUES (1)")

    def closed(connection: DatabaseWrapper) -> None:
        connection.set_autocommit(False, force_begin_transaction_with_broken_autocommit=True)
        connection.close()

    def locked_by_another_process(connection: DatabaseWrapper) -> None:
        other = sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(OperationalError, match="database is locked"):
            write_in_transaction(connection, 1)
        other.close()

    for end in (failing, broken_statement, closed, locked_by_another_process):
        end(connect(timeout=0.01))
        assert turns.acquire(0), end.__name__
        turns.release()


def test_a_failed_commit_keeps_the_turn_until_the_transaction_is_over(connect: Any, turns: Turns) -> None:
    connection = connect()
    connection.set_autocommit(False, force_begin_transaction_with_broken_autocommit=True)
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE parent (id INTEGER PRIMARY KEY)")
        cursor.execute("CREATE TABLE child (id REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")
        cursor.execute("INSERT INTO child VALUES (1)")
    with pytest.raises(Exception, match="FOREIGN KEY"):
        connection.commit()
    assert not turns.acquire(0)
    connection.rollback()
    connection.set_autocommit(True)
    assert turns.acquire(0)
    turns.release()


def test_inner_blocks_and_statements_of_a_transaction_take_no_turn_of_their_own(
    transactional_db: None,
) -> None:
    turns = turns_at(str(connections["default"].settings_dict["NAME"]))
    with transaction.atomic(), transaction.atomic():
        connections["default"].cursor().execute("UPDATE supervise_audithead SET seq = seq")
        assert not turns.acquire(0)
    assert turns.acquire(0)
    turns.release()


def test_what_happens_after_the_commit_holds_nobody_up(transactional_db: None) -> None:
    turns = turns_at(str(connections["default"].settings_dict["NAME"]))
    taken: list[bool] = []
    with transaction.atomic():
        transaction.on_commit(lambda: taken.append(turns.acquire(0)))
    turns.release()
    assert taken == [True]


def test_readers_take_no_turn(connect: Any) -> None:
    with in_transaction(connect()), connect().cursor() as cursor:
        assert cursor.execute("SELECT count(*) FROM line").fetchone() == (0,)


def test_one_that_gives_up_waiting_loses_nobodys_turn() -> None:
    turns = Turns()
    assert turns.acquire(0)
    taken: list[bool] = []
    patient = threading.Thread(target=lambda: taken.append(turns.acquire(PATIENCE)))
    assert not turns.acquire(0.01)
    patient.start()
    wait_until(lambda: len(turns) == 1)
    turns.release()
    patient.join(PATIENCE)
    assert taken == [True]


def test_a_forked_process_has_turns_of_its_own(path: Path) -> None:
    assert turns_at(str(path)).acquire(0)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if turns_at(str(path)).acquire(0) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
