"""The product's SQLite backend that also notes when it is about to commit. The product needs no hook."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

from django.conf import settings

from botbottle.database.sqlite import base

_times = os.open(Path(settings.BOTTLE_HOME) / "commits", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)


class DatabaseWrapper(base.DatabaseWrapper):
    def _commit(self) -> None:
        os.write(_times, struct.pack("d", time.time()))
        super()._commit()
