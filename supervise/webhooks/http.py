"""One POST to a receiver that operators chose: bounded in time and size, without redirects or a proxy."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, cast
from urllib.parse import SplitResult, urlsplit

STEP_SECONDS = 5.0  # to connect, and between two bytes
WHOLE_SECONDS = 10.0
MOST_READ = 16 * 1024


class BadReceiver(ValueError):
    """The message says what is wrong with the URL."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The receiver's answer. `code` is None if there was none."""

    code: int | None
    problem: str = ""

    @property
    def is_success(self) -> bool:
        return self.code is not None and 200 <= self.code < 300

    @property
    def is_trouble(self) -> bool:
        """Whether the receiver has a problem, rather than this one message."""
        return self.code is None or self.code >= 500 or self.code in {408, 425, 429}


LATE = Answer(None, "It did not answer in time.")


def check_url(url: str) -> SplitResult:
    """Check a receiver's URL: https to any host, or http on this machine. Raises BadReceiver."""
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise BadReceiver("The URL holds characters that a URL cannot.")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise BadReceiver("This is not a URL.") from error
    if parts.scheme not in {"https", "http"} or not parts.hostname:
        raise BadReceiver("The URL must look like https://chat.example.com/hooks/1.")
    if parts.username is not None or parts.fragment:
        raise BadReceiver("The URL may have neither a user name nor a '#'.")
    if parts.scheme == "http" and not _is_loopback(parts.hostname):
        raise BadReceiver("Over http messages could be read on their way. Use https; http is for 127.0.0.1.")
    return parts


def post(url: str, body: bytes, headers: dict[str, str]) -> Answer:
    """Send one POST; return the answer or why there is none. Never raises for anything a receiver does."""
    try:
        parts = check_url(url)
    except BadReceiver as error:
        return Answer(None, str(error))
    with _Deadline() as deadline:
        connection = _connection(parts, deadline)
        try:
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            answer.read(
                MOST_READ
            )  # so that a receiver that still writes is not cut off; the body is not kept
            # An answer cut off among its headers would look like one that has no more of them.
            return LATE if deadline.passed else Answer(answer.status, _problem(answer.status))
        except (OSError, http.client.HTTPException, ValueError) as error:
            return LATE if deadline.passed else Answer(None, _why(error))
        finally:
            connection.close()


class _Deadline:
    """Cuts the connection if the whole request takes too long.

    A socket's timeout counts from byte to byte, and a receiver could go on for days by sending one now and
    then.
    """

    def __init__(self) -> None:
        self.passed = False
        self._socket: socket.socket | None = None
        self._timer = threading.Timer(WHOLE_SECONDS, self._cut)
        self._timer.daemon = True

    def __enter__(self) -> _Deadline:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        if self._socket is not None:
            self._socket.close()

    def watched(self, address: tuple[str, int], *options: Any) -> socket.socket:
        """A new connection. A second handle is kept, because TLS takes over the first one."""
        opened = socket.create_connection(address, *options)
        self._socket = opened.dup()
        if self.passed:  # during the lookup or the dialling: the timer will not cut it any more
            opened.close()
            raise TimeoutError
        return opened

    def _cut(self) -> None:
        self.passed = True
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


def _connection(parts: SplitResult, deadline: _Deadline) -> http.client.HTTPConnection:
    host, port = str(parts.hostname), parts.port
    if parts.scheme == "https":
        context = ssl.create_default_context()
        made: Any = http.client.HTTPSConnection(host, port, timeout=STEP_SECONDS, context=context)
    else:
        made = http.client.HTTPConnection(host, port, timeout=STEP_SECONDS)
    made._create_connection = deadline.watched
    return cast("http.client.HTTPConnection", made)


def _problem(status: int) -> str:
    if 200 <= status < 300:
        return ""
    if 300 <= status < 400:
        return f"It answered {status}, a redirect, which is not followed. Give the final URL."
    return f"It answered {status}."


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"Its certificate is not valid: {error.verify_message}."[:300]
    if isinstance(error, TimeoutError):
        return LATE.problem
    if isinstance(error, OSError):
        return f"It cannot be reached: {error.strerror or type(error).__name__}."[:300]
    return f"It did not answer as HTTP: {type(error).__name__}."


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
