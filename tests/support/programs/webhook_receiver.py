"""A receiver of webhooks as its own process: writes each message as a line of JSON. Argument: the port."""

import json
import sys
import time

from tests.support.webhook_receiver import Receiver

told = 0
with Receiver(int(sys.argv[1])).running() as receiver:
    sys.stdout.write("ready\n")
    while True:
        for _, headers, body in receiver.got[told:]:
            sys.stdout.write(json.dumps({"headers": headers, "body": body.decode()}) + "\n")
            told += 1
        sys.stdout.flush()
        time.sleep(0.05)
