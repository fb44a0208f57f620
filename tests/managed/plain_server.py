"""A stdio MCP server of the standard library alone, which misbehaves on request."""

import json
import os
import pathlib
import signal
import sys
import threading
import time

TOOLS = ["echo", "slow", "crash", "whoami", "noisy", "hang"]


def say(message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def call(name, arguments):
    if name == "crash":
        sys.stderr.write("going down\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "slow":
        time.sleep(float(arguments.get("seconds", 0.3)))
    if name == "noisy":
        sys.stdout.write("this is no protocol\n")
    if name == "whoami":
        facts = {
            "pid": os.getpid(),
            "cwd": str(pathlib.Path.cwd()),
            "uid": os.getuid(),
            "hostname": os.uname().nodename,
            "prefix": sys.prefix,
            "env": dict(os.environ),
            "argv": sys.argv,
        }
        return json.dumps(facts)
    return json.dumps(arguments)


def answer(message):
    method, params = message.get("method"), message.get("params") or {}
    if method == "initialize":
        version = os.environ.get("ANSWER_VERSION") or params["protocolVersion"]
        info = {"name": "plain", "version": "1"}
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]}
    if method == "tools/call":
        token = (params.get("_meta") or {}).get("progressToken")
        if token is not None:
            progress = {"progressToken": token, "progress": 1}
            say({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress})
        text = call(params["name"], params.get("arguments") or {})
        return {"content": [{"type": "text", "text": text}], "isError": False}
    return {}


def serve(message):
    if "id" in message and (message.get("params") or {}).get("name") != "hang":
        say({"jsonrpc": "2.0", "id": message["id"], "result": answer(message)})


sys.stderr.write("plain server is up\n")
sys.stderr.flush()
for line in sys.stdin:
    threading.Thread(target=serve, args=(json.loads(line),), daemon=True).start()
