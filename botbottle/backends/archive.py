"""Pack files of the host for a bottle. Inside, `unpack.py` unpacks them as the agent's user."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import IO

from botbottle import inside
from botbottle.core.plan_types import BackendError

RECEIVE = (inside.DIRECTORY / "unpack.py").read_text(encoding="utf-8")


def pack(source: Path, archive: IO[bytes]) -> str:
    """Pack a file or tree; links stay links and their targets are not copied. Returns its name."""

    def checked(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        if not (entry.isreg() or entry.isdir() or entry.issym() or entry.islnk()):
            raise BackendError(f"{source}: {entry.name[2:]} is a pipe or a device. Leave it out.")
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry

    try:
        real = source.resolve(strict=True)
        with tarfile.open(fileobj=archive, mode="w") as tar:
            tar.add(real, "x", filter=checked)
    except OSError as error:
        raise BackendError(f"{source} cannot be read: {error.strerror}.") from error
    archive.seek(0)
    return source.name or real.name
