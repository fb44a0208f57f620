"""GET `argv[1]`; the proxy and the authorities come from the environment."""

import json
import sys

import httpx

answer = httpx.get(sys.argv[1], timeout=60)
sys.stdout.write(json.dumps({"status": answer.status_code, "body": answer.text}))
