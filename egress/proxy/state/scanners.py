"""What is searched for in each bottle's requests, kept until its table or one of its secrets changes.

Trust boundary: secrets are here in clear, and go nowhere but into what searches for them.
"""

from __future__ import annotations

import base64
import re
from time import monotonic

from egress.dlp.scanner import Scanner
from egress.dlp.secret_encodings import SHORTEST_ENCODED
from egress.policy.routes import AGENT_SCHEMES, Auth
from egress.policy.table import Snapshot
from egress.proxy.credentials.secrets import Secrets
from egress.proxy.credentials.sigv4 import AwsKey
from egress.proxy.state.active_scan import ActiveScan
from egress.proxy.state.bottle import BottleState

_BEFORE_TOKEN = re.compile(r'.*["=]')
_SECRETS_SECONDS = 1.0  # how soon a changed secret is known on routes that do not add it


class Scanners:
    """One scanner per bottle, made again when its table or one of its secrets has changed.

    Its secrets are those that the proxy adds, and those in its own variables.
    """

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets

    def search(self, bottle: BottleState, added: str | None = None) -> ActiveScan:
        """`added` is the secret about to be used, which is known then whatever the clock says."""
        now = monotonic()
        search, handed = bottle.search, bottle.handed.current(now)
        if (
            search is not None
            and search.snapshot is bottle.snapshot
            and search.handed is handed
            and now < search.until
            and (added is None or added in search.scanner.secrets)
        ):
            return search
        secrets = self._added_by(bottle.snapshot) | handed.secrets
        if search is not None and search.scanner.secrets == secrets:
            scanner = search.scanner
        else:
            scanner = Scanner(secrets)
        bottle.search = ActiveScan(bottle.snapshot, now + _SECRETS_SECONDS, scanner, handed)
        return bottle.search

    def _added_by(self, snapshot: Snapshot) -> frozenset[str]:
        found: set[str] = set()
        for auth in {route.auth for route in snapshot.table.routes if route.auth is not None}:
            secret = self._secrets.lookup(auth.token_ref)
            if secret is not None:
                found |= _secret_parts(auth, secret)
        return frozenset(found)


def _secret_parts(auth: Auth, secret: str) -> set[str]:
    """A name and a password are worth hiding together, and the password alone."""
    if auth.scheme == "SigV4":
        key = AwsKey.parse(secret)
        return {secret, key.secret, key.session} - {""} if key is not None else {secret}
    if auth.scheme == "header":
        return {secret} | _parts_of_header(secret)
    password = "" if auth.scheme in AGENT_SCHEMES else secret.partition(":")[2]
    return {secret, password} if password else {secret}


def _parts_of_header(value: str) -> set[str]:
    """Known without the rest too: what counts in `Bot <token>`, `Token token="<token>"`, `Basic <login>`."""
    scheme, _, last = value.rpartition(" ")
    token = _BEFORE_TOKEN.sub("", last.rstrip('"='))
    parts = {part for part in (last, token) if len(part) >= SHORTEST_ENCODED}
    if scheme.lower() == "basic":
        login = _decoded(last)
        parts |= {login, login.partition(":")[2]} - {""}
    return parts


def _decoded(login: str) -> str:
    try:
        return base64.b64decode(login).decode("utf-8")
    except ValueError:
        return ""
