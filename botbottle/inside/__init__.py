"""Programs that run inside bottles. Standard library only.

Each file stands alone, except that `init.py` imports `bridge.py` from its own directory.
"""

from pathlib import Path

DIRECTORY = Path(__file__).resolve().parent
