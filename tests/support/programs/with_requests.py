"""GET `argv[1]`; the proxy and the authorities come from the environment."""

import json
import sys

import requests

answer = requests.get(sys.argv[1], timeout=60)
sys.stdout.write(json.dumps({"status": answer.status_code, "body": answer.text}))
