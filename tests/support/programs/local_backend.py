"""One verb of the local backend in a process of its own, on its own streams: HOME VERB PLAN-OR-SLUG …"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from botbottle.backends.local.backend import LocalBackend
from botbottle.core.plan_types import BackendError
from botbottle.launch import plan_cache


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201


def main() -> int:
    home, verb, subject, *rest = sys.argv[1:]
    backend = LocalBackend(Path(home))
    try:
        match verb:
            case "run":
                return backend.run(plan_cache.from_json(Path(subject).read_text()), say)
            case "exec":
                return backend.exec(subject, rest, tty=False)
            case "exec-tty":
                return backend.exec(subject, rest, tty=True)
            case "attach":
                return backend.attach(subject)
            case "stop":
                backend.stop(subject)
                return 0
        return 99
    except BackendError as error:
        say(f"{type(error).__name__}: {error}")
        return 98


if __name__ == "__main__":
    sys.exit(main())
