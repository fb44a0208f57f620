"""Send three messages to `argv[1]` and get them back; the proxy comes from the environment."""

import json
import sys

from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

MESSAGES = ["hello", b"\x00\xff" * 10, "x" * 200_000]
try:
    with connect(sys.argv[1], open_timeout=60) as socket:
        same = []
        for message in MESSAGES:
            socket.send(message)
            same.append(socket.recv(timeout=60) == message)
        told = {"same": same}
except InvalidStatus as error:
    told = {"status": error.response.status_code, "body": error.response.body.decode()}
sys.stdout.write(json.dumps(told))
