"""A stdio MCP server of the standard library alone, which misbehaves on request."""

import json
import os
import pathlib
import signal
import sys
import threading
import time

TOOLS = ["echo", "slow", "crash", "whoami", "noisy", "hang", "fork", "eat", "params"]


def fork(count, megabytes):
    """How many children of this size live at once."""
    children = {}
    for _ in range(count):
        told, tell = os.pipe()
        try:
            child = os.fork()
        except OSError:
            break
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            kept = b"x" * (megabytes << 20)
            os.write(tell, b"." if kept is not None else b"")
            time.sleep(60)
            os._exit(1)
        os.close(tell)
        children[child] = told
    for told in children.values():
        os.read(told, 1)  # it has its memory, or is gone
    for child in children:
        os.kill(child, signal.SIGTERM)
    # One that ran out of memory dies of SIGKILL; its pipe closes before it can be waited for.
    ended = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return ended.count(-signal.SIGTERM)


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
    if name == "fork":
        return json.dumps(fork(arguments["count"], arguments.get("megabytes", 0)))
    if name == "eat":
        return json.dumps(len(b"x" * (arguments["megabytes"] << 20)))
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
        if params["name"] == "params":
            text = json.dumps(params)
        else:
            text = call(params["name"], params.get("arguments") or {})
        return {"content": [{"type": "text", "text": text}], "isError": False}
    return {}


def serve(message):
    if "id" in message and (message.get("params") or {}).get("name") != "hang":
        say({"jsonrpc": "2.0", "id": message["id"], "result": answer(message)})


if "LEAVES_AFTER" in os.environ:
    threading.Timer(float(os.environ["LEAVES_AFTER"]), os._exit, [3]).start()
sys.stderr.write("plain server is up\n")
sys.stderr.flush()
for line in sys.stdin:
    threading.Thread(target=serve, args=(json.loads(line),), daemon=True).start()
