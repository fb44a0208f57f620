"""The port for bottles that come with a token, bound once: several processes take connections from it."""

from __future__ import annotations

import os
import socket

from botbottle.core.environment import BadSetting

BACKLOG = 1024


def listen(bind: str, port: int) -> list[socket.socket]:
    """One socket for each address that `bind` stands for. Raises BadSetting."""
    opened: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(bind or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            listening = socket.socket(family, kind, protocol)
            opened.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind(address)
            listening.listen(BACKLOG)
            listening.setblocking(False)  # another process may win the race for a connection
    except OSError as error:
        for listening in opened:
            listening.close()
        # The system's own words may say the address twice.
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise BadSetting(
            f"Cannot listen on {bind}:{port} ({why}). Stop what uses it, or set EGRESS_PORT."
        ) from error
    return opened
