"""The account a bottle runs as: never root, and the operator's own where that keeps the workspace theirs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from botbottle.backends.base import Progress
from botbottle.core.plan_types import HOME_INSIDE, UID_INSIDE, USER_INSIDE, Mount, Plan

HOME_LABEL, SLUG_LABEL = "bot-bottle.home", "bot-bottle.slug"


def home_mark(home: Path) -> str:
    """A mark that tells apart the sandboxes of different homes in one engine."""
    return hashlib.sha256(str(home.resolve()).encode()).hexdigest()[:16]


def sandbox_name(home: Path, slug: str) -> str:
    return f"bot-bottle-{home_mark(home)[:8]}-{slug}"


def sandbox_labels(home: Path, slug: str) -> dict[str, str]:
    return {HOME_LABEL: home_mark(home), SLUG_LABEL: slug}


@dataclass(frozen=True, slots=True)
class User:
    """A user and group id as seen on the host."""

    uid: int
    gid: int

    def __str__(self) -> str:
        return f"{self.uid}:{self.gid}"

    def may_write(self, path: str) -> bool:
        status = Path(path).stat()
        mode = status.st_mode
        if status.st_uid == self.uid:
            return bool(mode & 0o200)
        return bool(mode & 0o020 if status.st_gid == self.gid else mode & 0o002)


def bottle_user(home: Path) -> User:
    """The owner of BOTTLE_HOME, so that the workspace stays theirs; if that is root, a fixed other id."""
    status = home.stat()
    return User(status.st_uid, status.st_gid) if status.st_uid else User(UID_INSIDE, UID_INSIDE)


def chown_workspace(plan: Plan, user: User) -> None:
    """Make the bottle's user own the workspace that bot-bottle created. Other workspaces are not touched."""
    if os.geteuid() != 0:
        return
    for mount in plan.mounts:
        if mount.writable and Path(mount.source).parent == Path(plan.directory):
            os.chown(mount.source, user.uid, user.gid, follow_symlinks=False)


def warn_of_closed_mounts(mounts: Sequence[Mount], user: User, progress: Progress) -> None:
    for mount in mounts:
        if not mount.writable or user.uid == 0 or not Path(mount.source).exists():
            continue
        if not user.may_write(mount.source):
            progress(
                f"Warning: {mount.source} is not writable for the bottle's user {user}. "
                f"To let the agent write to {mount.target}: chown -R {user} {mount.source}"
            )


def account_files(user: User, passwd: str | None, group: str | None) -> dict[str, str]:
    """An image's passwd and group, with our account in place of any that has its id or name."""

    def others(text: str | None, number: int) -> str:
        lines = (line for line in (text or "").splitlines() if line.count(":") >= 2)
        others_lines = [
            line for line in lines if line.split(":")[2] != str(number) and line.split(":")[0] != USER_INSIDE
        ]
        return "".join(f"{line}\n" for line in others_lines)

    entry = f"{USER_INSIDE}:x:{user.uid}:{user.gid}:agent:{HOME_INSIDE}:/bin/sh\n"
    return {
        "passwd": others(passwd, user.uid) + entry,
        "group": others(group, user.gid) + f"{USER_INSIDE}:x:{user.gid}:\n",
    }
