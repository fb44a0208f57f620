"""This home's name, as migrations knew it when they were written. Kept apart from live code, which changes."""

import os
from pathlib import Path
from secrets import token_hex

from django.conf import settings


def home_id():
    """Made by the first who needs it; who starts at the same moment agrees."""
    path = Path(settings.BOTTLE_HOME) / "home_id"
    if not path.exists():
        candidate = path.with_name(f".home_id.{os.getpid()}.{token_hex(4)}")
        candidate.touch(0o600)
        candidate.write_text(token_hex(16))
        try:
            os.link(candidate, path)
        except FileExistsError:
            pass
        finally:
            candidate.unlink()
    return path.read_text().strip()
