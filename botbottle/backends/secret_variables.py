"""Tells the proxy which secrets a bottle gets as variables, so that they cannot leave the bottle.

Trust boundary: the file is private, stays on the host and is in no mount. It is written before the sandbox
can send anything, else nothing is started; it is removed with the sandbox.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from botbottle.backends.base import Life
from botbottle.core import locks
from botbottle.core.plan_types import BackendError, Plan
from egress.contract.secret_variables import FILE, KNOWN_AFTER_SECONDS, from_bytes, to_bytes


def environment(plan: Plan, run: Path) -> dict[str, str]:
    """The plan's variables with their values, once the proxy knows them. Raises BackendError.

    Only the process that starts a stopped bottle calls this. Never log or print the result.
    """
    values = plan.environment()
    secrets = {name: values[name] for name, variable in plan.variables.items() if variable.secret}
    if secrets:
        _write(run, secrets, with_former=False)
    else:
        forget(run)
    return values


def add(run: Path, secrets: Mapping[str, str]) -> None:
    """Add secrets that a program in the running bottle gets. Raises BackendError."""
    if secrets:
        _write(run, secrets, with_former=True)


def forget(run: Path) -> None:
    (run / FILE).unlink(missing_ok=True)


def forget_when_over(run: Path, slug: str, life: Callable[[str], Life], *, lock: str) -> None:
    """Remove the secrets of an ended bottle; not of one that lives, is being started or is unknown."""
    with suppress(BackendError):
        if (run / FILE).exists() and not life(slug).alive:
            with lock_start(run, slug, lock=lock):
                if not life(slug).alive:  # it may have been started meanwhile
                    forget(run)


@contextmanager
def lock_start(run: Path, slug: str, *, lock: str) -> Iterator[None]:
    """Allow one start of a bottle at a time, by a lock of this name. Raises BackendError."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locks.lock(run / lock, wait=False))
        except BlockingIOError:
            raise BackendError(f"The bottle {slug} is already being started. Wait for it.") from None
        yield


def _write(run: Path, secrets: Mapping[str, str], *, with_former: bool) -> None:
    for name, value in secrets.items():
        if not value.isascii() and not _is_text(value):
            raise BackendError(f"env.{name}: it is not UTF-8 text, so nothing could search for it. Clean it.")
    try:
        with locks.lock(run / f"{FILE}.lock"):  # against a server of the bottle that ended just now
            former = _former(run) if with_former else frozenset()
            _replace(run / FILE, to_bytes({*former, *secrets.values()}))
            time.sleep(KNOWN_AFTER_SECONDS)  # a program started after this cannot be faster than the proxy
    except (OSError, ValueError) as error:
        raise BackendError(f"The proxy cannot be told what must not leave the bottle: {error}.") from error


def _is_text(value: str) -> bool:
    """Whether a value is valid text: a variable of the host can hold any bytes."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _former(run: Path) -> frozenset[str]:
    try:
        return from_bytes((run / FILE).read_bytes())
    except FileNotFoundError:
        return frozenset()


def _replace(path: Path, content: bytes) -> None:
    """Replace the file as a whole. Where root starts a bottle, the proxy may run as another user."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        if os.geteuid() == 0:
            owner = path.parent.parent.stat()
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
    fresh.replace(path)
