"""Runs in a bottle: reports that it runs, reads from standard input what to execute, and becomes that.

So arguments and variables of a managed server appear on no command line outside, and the host can put the
process into a control group before it starts anything. Standard library only.

The input begins with the length of a JSON object in eight digits, then the object: {argv, env, path, cwd} and
limits.
"""

# ruff: noqa: SIM105
import json
import os
import resource
import signal
import sys

NOT_EXECUTABLE, NOT_FOUND = 126, 127
READY = b'{"bot-bottle":"here"}\n'


def read_exactly(count: int) -> bytes:
    """Read exactly this many bytes: what follows is for the program."""
    received = b""
    while len(received) < count:
        chunk = os.read(0, count - len(received))
        if not chunk:
            raise SystemExit(NOT_EXECUTABLE)
        received += chunk
    return received


def limit(wanted: "dict[str, int]") -> None:
    """Lower the limits of each process, where no control group limits them together."""
    for name, kind in (("data_bytes", resource.RLIMIT_DATA), ("processes", resource.RLIMIT_NPROC)):
        if wanted.get(name):
            hard = resource.getrlimit(kind)[1]
            most = wanted[name] if hard == resource.RLIM_INFINITY else min(wanted[name], hard)
            resource.setrlimit(kind, (most, most))
    if wanted.get("cpus"):
        usable = sorted(os.sched_getaffinity(0))
        try:
            os.sched_setaffinity(0, usable[: wanted["cpus"]])
        except OSError:  # the bottle's own limit is narrower
            pass


def main() -> int:
    os.write(1, READY)
    wanted = json.loads(read_exactly(int(read_exactly(8))))
    argv = wanted["argv"]
    try:
        limit(wanted)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these, a program expects them
            signal.signal(number, signal.SIG_DFL)
        os.makedirs(wanted["cwd"], exist_ok=True)  # noqa: PTH103
        os.chdir(wanted["cwd"])
        variables = {**os.environ, **wanted["env"]}
        if wanted["path"]:
            variables["PATH"] = wanted["path"] + ":" + variables.get("PATH", os.defpath)
        os.execvpe(argv[0], argv, variables)  # noqa: S606
    except FileNotFoundError:
        os.write(2, os.fsencode(f"{argv[0]}: not found in this bottle\n"))
        return NOT_FOUND
    except (OSError, ValueError) as error:
        os.write(2, os.fsencode(f"{argv[0]}: cannot be executed: {error}\n"))
    return NOT_EXECUTABLE


if __name__ == "__main__":
    sys.exit(main())
