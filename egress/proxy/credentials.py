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
from urllib.parse import unquote_to_bytes

from egress.routes import Auth

from .errors import Refusal
from .head import Field, folded
from .targets import MOST_PARAMETERS, too_many_parameters

# Our own configuration is not for lending out, whatever a route may name.
_OWN_SETTINGS = re.compile(
    r"(?:BOTTLE|EGRESS|SUPERVISE|CONSOLE|DJANGO)_.*|SECRET_KEY|DATABASE_URL|REDIS_URL|.*_FILE|PATH|HOME"
)
_SENDABLE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_MAX_SECRET = 16 * 1024
_CREDENTIAL_HEADERS = frozenset(
    {
        b"authorization",
        b"cookie",
        b"x-api-key",
        b"api-key",
        b"apikey",
        b"x-auth-token",
        b"x-access-token",
        b"private-token",
        b"job-token",
        b"deploy-token",
        b"x-gitlab-token",
        b"x-goog-api-key",
        b"x-amz-security-token",
        b"x-csrf-token",
        b"x-github-token",
        b"x-vault-token",
    }
)
# Not those that lead to the next page (page_token, continuation-token) or name a thing (session_id).
_CREDENTIAL_PARAMETERS = (
    "access_token", "api_token", "auth_token", "bearer_token", "deploy_token", "id_token", "job_token",
    "oauth_token", "personal_access_token", "private_token", "refresh_token", "session_token", "token",
    "user_token", "x_access_token", "x_auth_token", "jwt", "bearer",
    "access_key", "api_key", "app_key", "auth_key", "key", "private_key", "secret_key",
    "subscription_key", "x_api_key",
    "api_secret", "app_secret", "client_secret", "consumer_secret", "secret", "client_assertion",
    "auth", "authorization", "credential", "credentials", "passwd", "password", "pwd",
    "jsessionid", "phpsessid",
    "sig", "signature", "hmac", "oauth_signature", "aws_access_key_id", "google_access_id",
    "x_amz_signature", "x_amz_credential", "x_amz_security_token", "x_goog_signature", "x_goog_credential",
)  # fmt: skip
_PARAMETER = re.compile(rb"(?:\A|[?&;])([^?&;=\[\0]+)")
_BETWEEN_WORDS = re.compile(rb"[^a-z0-9]")


class Secrets:
    """Files in `BOTTLE_HOME/secrets` (0600) first, then variables of this process's environment."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[str, tuple[tuple[int, int, int], str]] = {}

    def lookup(self, name: str) -> str | None:
        """The secret, or None when there is none that can be used. Why not is for `problem`."""
        try:
            value = self._from_file(name)
        except (OSError, ValueError):
            return None
        if value is None and not _OWN_SETTINGS.fullmatch(name):
            value = os.environ.get(name)
        if not value or len(value) > _MAX_SECRET or not _SENDABLE.fullmatch(value):
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
            return f"There is no secret {name}: set that variable for the egress process, or write the file."
        if self.lookup(name) is None:
            return f"The secret {name} is empty, too long, reserved or has characters that no header takes."
        return None

    def _from_file(self, name: str) -> str | None:
        path = self._directory / name
        try:
            found = path.lstat()
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077 or found.st_uid != os.geteuid():
            raise ValueError(f"The file secrets/{name} must be a plain file of this user with mode 0600.")
        version = (found.st_mtime_ns, found.st_size, found.st_ino)
        kept = self._read.get(name)
        if kept is None or kept[0] != version:
            kept = (version, path.read_text(encoding="utf-8").strip("\r\n"))
            self._read[name] = kept
        return kept[1]


def is_credential(key: bytes, auth: Auth) -> bool:
    """Whether this header (lower case) may carry a credential."""
    name = folded(key)
    return name in _CREDENTIAL_HEADERS or (auth.header != "" and name == auth.header.lower().encode("ascii"))


def credential_field(auth: Auth, secret: str) -> Field:
    """The route's own credential, as it is added."""
    name, value = _header(auth, secret)
    return name.lower(), name, value


def refuse_credential_in_url(origin_form: bytes) -> None:
    """Raises Refusal, also for more parameters than can be looked at while others wait."""
    for name in _parameter_names(origin_form.partition(b"?")[2]):
        if name in _REFUSED_NAMES:
            raise Refusal(
                "credential-in-url",
                f"This route adds its own credential. Send the request again without {_REFUSED_NAMES[name]}"
                " in the URL, and use no presigned URL.",
            )


def _parameter_names(query: bytes) -> set[bytes]:
    """All that an origin could read there, with escapes undone once and twice."""
    names = _names_in(query)
    once = [unquote_to_bytes(name) for name in names]
    twice = [unquote_to_bytes(name) for name in once]
    return {_joined(name) for layer in (names, once, twice) for name in _names_in(b"&".join(layer))}


def _names_in(query: bytes) -> list[bytes]:
    if sum(query.count(separator) for separator in (b"?", b"&", b";")) >= MOST_PARAMETERS:
        raise too_many_parameters()
    return _PARAMETER.findall(query)


def _joined(name: bytes) -> bytes:
    """One form for access_token, accessToken, access.token and 'access token': some origins take them all."""
    return _BETWEEN_WORDS.sub(b"", name.lower())


_REFUSED_NAMES = {_joined(name.encode("ascii")): name for name in _CREDENTIAL_PARAMETERS}


def _header(auth: Auth, secret: str) -> tuple[bytes, bytes]:
    if auth.scheme == "header":
        return auth.header.encode("ascii"), secret.encode("ascii")
    if auth.scheme == "Basic":
        return b"Authorization", b"Basic " + base64.b64encode(secret.encode("ascii"))
    return b"Authorization", f"{auth.scheme} {secret}".encode("ascii")
