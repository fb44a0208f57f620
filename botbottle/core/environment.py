"""Reads settings from the environment, their only source. Junk stops the start and names the variable."""

from __future__ import annotations

import ipaddress
import os
import re
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

SQLITE = "botbottle.database.sqlite"  # Django's backend, with turns for its writers
CONNECT_SECONDS = "5"  # a PostgreSQL server that accepts and says nothing would hold each thread for minutes
_HOST_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


class BadSetting(Exception):
    """A variable, port or directory that the operator must correct before we can start."""


def text(name: str, default: str = "") -> str:
    """The variable's value, or the first line of the file named by `<name>_FILE`."""
    path = os.environ.get(f"{name}_FILE")
    if path:
        if name in os.environ:
            raise BadSetting(f"{name} and {name}_FILE are both set. Keep one of them.")
        try:
            return Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadSetting(f"{name}_FILE={path} cannot be read: {error}.") from error
    return os.environ.get(name, default)


def flag(name: str, *, default: bool = False) -> bool:
    value = text(name, "1" if default else "0").lower()
    if value in {"1", "true", "yes", "on"}:
        return True
    if value in {"0", "false", "no", "off", ""}:
        return False
    raise BadSetting(f"{name}={value!r} is neither true nor false. Use 1 or 0.")


def whole_number(name: str, default: int, *, at_least: int, at_most: int) -> int:
    value = text(name, str(default))
    try:
        number = int(value)
    except ValueError:
        number = at_least - 1
    if not at_least <= number <= at_most:
        raise BadSetting(f"{name}={value!r} must be a whole number from {at_least} to {at_most}.")
    return number


def port(name: str, default: int) -> int:
    """A TCP port; 0 asks the system for a free one."""
    return whole_number(name, default, at_least=0, at_most=65535)


def seconds(name: str, default: float) -> float:
    value = text(name, str(default))
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0 < number < 10**9:  # also false for NaN
        raise BadSetting(f"{name}={value!r} must be a positive number of seconds.")
    return number


def words(name: str) -> list[str]:
    return [word.strip() for word in text(name).split(",") if word.strip()]


def host_names(name: str) -> list[str]:
    """Names or addresses without a port. Junk is refused: it would be a name that never matches."""
    found = [word.lower() for word in words(name)]
    for word in found:
        if not _HOST_NAME.fullmatch(word) and not _is_address(word):
            raise BadSetting(f"{name}={word!r} is not a host name. Name hosts without scheme and port.")
    return found


def _is_address(word: str) -> bool:
    try:
        ipaddress.ip_address(word)
    except ValueError:
        return False
    return True


def database(name: str, sqlite_path: Path) -> dict[str, object]:
    """A Django DATABASES entry: PostgreSQL from the URL, else SQLite tuned for many writers."""
    url = text(name)
    if not url:
        return _sqlite(sqlite_path)
    parts = urlsplit(url)
    try:
        number = parts.port
    except ValueError as error:
        raise BadSetting(f"{name} has a port that is not a number.") from error
    database_name = unquote(parts.path.lstrip("/"))
    if parts.scheme not in {"postgres", "postgresql"} or not database_name:
        raise BadSetting(f"{name} must look like postgres://user:password@host:5432/database.")
    options = {"connect_timeout": CONNECT_SECONDS, **dict(parse_qsl(parts.query))}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": database_name,
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": options.pop("host", "") or unquote(parts.hostname or ""),
        "PORT": str(number or ""),
        "OPTIONS": options,
        "CONN_MAX_AGE": 600,
        "CONN_HEALTH_CHECKS": True,
    }


def _sqlite(path: Path) -> dict[str, object]:
    return {
        "ENGINE": SQLITE,
        "NAME": str(path),
        "CONN_MAX_AGE": None,
        "OPTIONS": {
            "timeout": 20,
            # Deferred transactions fail with "database is locked" when two readers both turn into writers.
            "transaction_mode": "IMMEDIATE",
            "init_command": (
                "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA busy_timeout=20000; "
                "PRAGMA temp_store=MEMORY; PRAGMA cache_size=-2000;"
            ),
        },
        # A file: threads share it more easily than an in-memory database with a name.
        "TEST": {"NAME": str(path.with_name("test-" + path.name))},
    }
