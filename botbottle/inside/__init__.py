"""Programs that run inside of bottles. Standard library only; each file stands alone, but `init.py` imports
`bridge.py` from its own directory."""

from pathlib import Path

DIRECTORY = Path(__file__).resolve().parent
