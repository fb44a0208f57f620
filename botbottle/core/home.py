"""BOTTLE_HOME: the one directory that holds all state. Everything in it is private to its owner."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path

from botbottle.core.environment import BadSetting
from botbottle.core.files import write_private


def prepare(home: Path) -> Path:
    """Create the directory (0700) or say in one sentence why it cannot be used."""
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        home.chmod(0o700)
    except OSError as error:
        raise BadSetting(f"BOTTLE_HOME={home} cannot be used: {error.strerror}. Choose another.") from error
    if not os.access(home, os.W_OK | os.X_OK):
        raise BadSetting(f"BOTTLE_HOME={home} is not writable. Choose another directory.")
    return home


def secret_key(home: Path) -> str:
    """Django's SECRET_KEY, created once."""
    path = home / "secret_key"
    key = made_once(path, lambda: secrets.token_urlsafe(64))
    if len(key) < 50:
        raise BadSetting(f"{path} is damaged (too short). Remove it to make a new key; sessions end.")
    return key


def made_once(path: Path, make: Callable[[], str]) -> str:
    """Read the file, creating it first if needed. Safe against concurrent creation."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        candidate = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        write_private(candidate, make())
        try:
            os.link(candidate, path)
        except FileExistsError:
            pass
        finally:
            candidate.unlink()
        return path.read_text(encoding="utf-8").strip()
