"""The real data plane process, with a name service that answers from a file and notes what it was asked.

What it dials is noted too. A public address is not dialled: an origin on loopback stands in for it.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
from pathlib import Path

from egress.proxy.config import from_environment
from egress.proxy.main import run
from egress.proxy.net import dialing
from egress.proxy.process import subordinate_epoll

names, asked, dialled, stand_ins = map(Path, sys.argv[1:])
really_connect = dialing._connect


async def lookup(host: str) -> list[str]:
    return answer(host)


def answer(host: str) -> list[str]:
    """Lists in a list are for one time each; the last one stays."""
    note(asked, host)
    answers = json.loads(names.read_text()).get(host)
    if answers is None:
        raise OSError(f"{host} does not exist")
    if answers and isinstance(answers[0], list):
        before = asked.read_text().split().count(host) - 1
        answers = answers[min(before, len(answers) - 1)]
    return list(answers)


async def connect(address: str, port: int) -> socket.socket:
    note(dialled, f"{address}:{port}")
    known = json.loads(stand_ins.read_text())
    return await really_connect(*known.get(f"{address}:{port}", (address, port)))


def note(where: Path, what: str) -> None:
    with where.open("a") as file:
        file.write(what + "\n")


if "SUBUID_FILE" in os.environ:
    subordinate_epoll.RANGES = Path(os.environ["SUBUID_FILE"])
dialing._connect = connect
logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
sys.exit(run(from_environment(), lookup=lookup))
