"""What tests are made of: one agent, one server, one way to wait, one network namespace, one origin.

`programs/` holds what runs as a process of its own.
"""

from pathlib import Path

PROGRAMS = Path(__file__).resolve().parent / "programs"
ROOT = PROGRAMS.parents[2]
