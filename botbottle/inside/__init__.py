"""Programs that run inside of bottles. Standard library only, and each file stands alone."""

from pathlib import Path

DIRECTORY = Path(__file__).resolve().parent
