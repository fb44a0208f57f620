"""Secrets that the proxy adds to requests: looked up by name at the moment of use, never shown or logged.

Trust boundary: an operator bound the name to a route; the agent behind it never sees the value, and what the
agent sends as a credential of its own is taken out.
"""

from __future__ import annotations

import base64
import os
import re
import stat
from pathlib import Path

from egress.policy import secret_names
from egress.policy.routes import Auth
from egress.proxy.credentials.names import credential_in_query, is_credential_header
from egress.proxy.errors import Refusal
from egress.proxy.http.heads import Field, folded

# Our own configuration is not for lending out, whatever a route may name.
_OWN_SETTINGS = re.compile(
    r"(?:BOTTLE|EGRESS|SUPERVISE|CONSOLE|DJANGO|OIDC)_.*"
    r"|SECRET_KEY|DATABASE_URL|REDIS_URL|WEB_WORKERS|.*_FILE|PATH|HOME"
)
_MAX_SECRET = 16 * 1024


class Secrets:
    """Files (0600), those from the admin first; then variables of this process's environment."""

    def __init__(self, home: Path) -> None:
        self._directories = (home / secret_names.FROM_ADMIN, home / secret_names.BY_HAND)
        self._read: dict[Path, tuple[tuple[int, int, int], str]] = {}

    def lookup(self, name: str) -> str | None:
        """The secret, or None when there is none that can be used. Why not is for `problem`."""
        try:
            value = self._from_file(name)
        except (OSError, ValueError):
            return None
        if value is None and not _OWN_SETTINGS.fullmatch(name):
            value = os.environ.get(name)
        if not value or len(value) > _MAX_SECRET or not secret_names.VALUE.fullmatch(value):
            return None
        return value

    def problem(self, name: str) -> str | None:
        """For the operator: why this name gives no secret. None when it does."""
        try:
            value = self._from_file(name)
        except ValueError as error:
            return str(error)
        except OSError as error:
            return f"The secret file for {name} cannot be read: {error.strerror}."
        if value is None and name not in os.environ:
            return f"There is no secret {name}: set it in the admin (Secrets), or write secrets/{name}."
        if self.lookup(name) is None:
            return f"The secret {name} is empty, too long, reserved or has characters that no header takes."
        return None

    def _from_file(self, name: str) -> str | None:
        """Raises OSError or ValueError for a file that cannot be used: no other is used in its place."""
        contents = (self._content(directory / name) for directory in self._directories)
        return next((content for content in contents if content is not None), None)

    def _content(self, path: Path) -> str | None:
        try:
            found = path.lstat()
        except FileNotFoundError:
            self._read.pop(path, None)
            return None
        if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077 or found.st_uid != os.geteuid():
            name = f"{path.parent.name}/{path.name}"
            raise ValueError(f"The file {name} must be a plain file of this user with mode 0600.")
        version = (found.st_mtime_ns, found.st_size, found.st_ino)
        kept = self._read.get(path)
        if kept is None or kept[0] != version:
            kept = (version, path.read_text(encoding="utf-8").strip("\r\n"))
            self._read[path] = kept
        return kept[1]


def is_credential(key: bytes, auth: Auth) -> bool:
    """Whether this header (lower case) may carry a credential."""
    return is_credential_header(key) or (
        auth.header != "" and folded(key) == auth.header.lower().encode("ascii")
    )


def credential_field(auth: Auth, secret: str) -> Field:
    """The route's own credential, as it is added."""
    name, value = _header(auth, secret)
    return name.lower(), name, value


def refuse_credential_in_url(origin_form: bytes) -> None:
    """Raises Refusal, also for more parameters than can be looked at while others wait."""
    _, _, query = origin_form.partition(b"?")
    if query and (found := credential_in_query(query)) is not None:
        raise Refusal(
            "credential-in-url",
            f"This route adds its own credential. Send the request again without {found}"
            " in the URL, and use no presigned URL.",
        )


def _header(auth: Auth, secret: str) -> tuple[bytes, bytes]:
    if auth.scheme == "header":
        return auth.header.encode("ascii"), secret.encode("ascii")
    if auth.scheme == "Basic":
        return b"Authorization", b"Basic " + base64.b64encode(secret.encode("ascii"))
    return b"Authorization", f"{auth.scheme} {secret}".encode("ascii")
