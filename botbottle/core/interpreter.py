"""The Python that runs the small programs beside and inside bottles, and their byte code.

Every start imports this.
"""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path


def host_interpreter() -> str:
    """The host's Python, outside of any virtual environment."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    path = f"{sys.base_prefix}/bin/python{version}"
    return path if os.access(path, os.X_OK) else os.path.realpath(sys.executable)


def compiled(source: Path) -> Path:
    """The file's byte code for this interpreter, which needs a megabyte less to run; else the file itself."""
    cached = source.parent / "__pycache__" / f"{source.stem}.{sys.implementation.cache_tag}.pyc"
    facts = source.stat()
    stamp = struct.pack("<III", 0, int(facts.st_mtime) & 0xFFFFFFFF, facts.st_size & 0xFFFFFFFF)
    try:
        with cached.open("rb") as file:
            if file.read(16)[4:] == stamp:
                return cached
    except OSError:
        pass
    import py_compile  # noqa: PLC0415 - once

    try:
        py_compile.compile(str(source), str(cached), doraise=True)
    except (OSError, py_compile.PyCompileError):
        return source
    return cached
