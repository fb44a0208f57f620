#!/usr/bin/env python
"""The one entry point: up, web, egress, demo, bottle, proposals, servers, verify_audit … and Django's own."""

import os
import signal
import sys

from botbottle.core.environment import BadSetting


def main() -> int:
    os.umask(0o077)  # our files are private
    try:
        try:
            return _main()
        finally:
            if sys.stdout:  # None if it was closed before the start
                sys.stdout.flush()
    except BadSetting as problem:
        sys.stderr.write(f"bot-bottle: {problem}\n")
        return 2
    except BrokenPipeError:
        if not _stdout_closed():
            raise
        return 128 + signal.SIGPIPE


def _stdout_closed() -> bool:
    """Whether the reader of our output, such as `head`, is gone. Later output is discarded."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def _main() -> int:
    if sys.argv[1:2] == ["egress"]:  # the data plane starts fast and runs without Django
        from egress.proxy.main import main as egress  # noqa: PLC0415

        return egress(sys.argv[2:])
    if sys.argv[1:2] == ["up"] and "BOTTLE_PREPARED" in os.environ:  # the second half of `up`
        from botbottle.process_supervisor import main as supervise  # noqa: PLC0415

        return supervise()
    if sys.argv[1:2] == ["bottle"] and sys.argv[2:3] in (["run"], ["exec"], ["attach"]):
        from botbottle.launch import fast_cli  # noqa: PLC0415 - a bottle whose plan is fresh needs no Django either

        code = fast_cli.try_fast_cli(sys.argv[2:])
        if code is not None:
            return code
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "botbottle.settings")
    from django.core.management import execute_from_command_line  # noqa: PLC0415

    execute_from_command_line(sys.argv)
    return 0


if __name__ == "__main__":
    sys.exit(main())
