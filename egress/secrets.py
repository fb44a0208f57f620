"""The operators' secrets: encrypted in the database, given to the proxy as files (0600), never shown.

The key is a file in BOTTLE_HOME, so a copy of the database alone reveals nothing.
"""

from __future__ import annotations

import logging
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken
from django.conf import settings
from django.core.validators import RegexValidator
from django.db import transaction

from botbottle.core import locks
from botbottle.core.environment import BadSetting
from botbottle.core.files import write_atomically
from botbottle.core.home import made_once
from egress.models import Secret
from egress.policy import secret_names

log = logging.getLogger(__name__)
_LOCK = ".lock"  # not a valid name of a secret
valid_value = RegexValidator(
    rf"\A{secret_names.VALUE.pattern}\Z",
    "A secret travels in a header: one line of ASCII characters that neither begins nor ends with a space.",
)


def seal(value: str) -> bytes:
    """Encrypt with this home's key, for the database."""
    return _fernet().encrypt(value.encode("utf-8"))


def unseal(sealed: bytes | memoryview) -> str:
    """Raises InvalidToken if it was sealed with another key."""
    return _fernet().decrypt(bytes(sealed)).decode("utf-8")


def put(name: str, value: str, *, author: str) -> Secret:
    """Set or replace a secret; the proxy uses the new value from its next request on."""
    secret, _ = Secret.objects.update_or_create(
        name=name, defaults={"sealed": seal(value), "updated_by": author}
    )
    transaction.on_commit(
        lambda: _write_file(name), robust=True
    )  # if it fails, the background job tries again
    return secret


def remove(secret: Secret) -> None:
    """Remove a secret. Routes that name it fail closed: on other machines after a round of the background
    job.
    """
    name = secret.name
    secret.delete()
    transaction.on_commit(
        lambda: _write_file(name), robust=True
    )  # if it fails, the background job tries again


def write_all_files() -> list[str]:
    """Make this home's files match the database. Returns the names of secrets that cannot be decrypted."""
    _remove_orphaned_files()
    unreadable = []
    for secret in Secret.objects.order_by("name"):
        try:
            if _in_file(secret.name) != _opened(secret).encode("utf-8"):
                _write_file(secret.name)
        except InvalidToken:
            unreadable.append(secret.name)
    return unreadable


def is_readable(secret: Secret) -> bool:
    """False if the key that it was encrypted with no longer exists."""
    try:
        _opened(secret)
    except InvalidToken:
        return False
    return True


def _write_file(name: str) -> None:
    """Make the file match the database. Under a lock, so that an older value is never written last."""
    path = _path(name)
    with locks.lock(_path(_LOCK)):
        secret = Secret.objects.filter(name=name).first()
        if secret is None:
            path.unlink(missing_ok=True)
            return
        write_atomically(path, _opened(secret))


def _remove_orphaned_files() -> None:
    """Remove files whose secret was removed on another machine, or by a process that did not finish."""
    with locks.lock(_path(_LOCK)):
        known = {_LOCK, *Secret.objects.values_list("name", flat=True)}
        for path in _path(_LOCK).parent.iterdir():
            if path.name not in known:
                _remove(path)


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except OSError as error:  # does not delay the others
        log.error("%s of a removed secret is still there, and used: %s", path, error.strerror)


def _opened(secret: Secret) -> str:
    return unseal(secret.sealed)


def _in_file(name: str) -> bytes | None:
    try:
        return _path(name).read_bytes()
    except FileNotFoundError:
        return None


def _path(name: str) -> Path:
    return Path(settings.BOTTLE_HOME) / secret_names.FROM_ADMIN / name


def _fernet() -> Fernet:
    path = Path(settings.BOTTLE_HOME) / "secrets.key"
    try:
        return Fernet(made_once(path, lambda: Fernet.generate_key().decode("ascii")))
    except ValueError as error:
        raise BadSetting(
            f"{path} is damaged. Put its copy back, or remove it and set every secret again in the admin."
        ) from error
