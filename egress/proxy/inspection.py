"""Data loss prevention on one request and its answer: what is searched, and what a find leads to.

Trust boundary: the bottle must not send a secret, the origin must not send back the one that we added.
"""

from __future__ import annotations

import base64
import re
from time import monotonic

from egress.decoding import Unreadable, codings_of, memory_of
from egress.dlp import OVERLAP, PROVISIONED, BodyScan, Finding, Found, Scanner, Steps, injections
from egress.policy import Snapshot
from egress.routes import AGENT_SCHEMES, Auth, Route
from egress.scrubbing import Scrubber
from egress.secret_forms import SHORTEST_ENCODED
from egress.websocket_frames import FrameScan

from .bottles import Bottle
from .credentials import Secrets
from .errors import BadAnswer, Refusal
from .head import Field, Head, RequestHead, ResponseHead
from .holding import Hold
from .records import Record
from .search import Search
from .sigv4 import AwsKey
from .targets import Target

_FORM = b"application/x-www-form-urlencoded"
_READABLE = (
    b"text/",
    b"application/json",
    b"application/xml",
    b"application/xhtml",
    b"application/javascript",
)
_BEFORE_TOKEN = re.compile(r'.*["=]')
CONCEALED = "(concealed)"
_OF_A_VARIABLE = (
    " What a secret variable of this bottle holds leaves only where an operator has switched the search off."
)
_REMEMBERED_BLOCKS, _REMEMBERED_BYTES = 512, 2048
_SECRETS_SECONDS = 1.0  # how soon a changed secret is known on routes that do not add it


class Scanners:
    """One scanner per bottle, made anew when its table or one of its secrets has changed.

    Its secrets are those that the proxy adds, and those that its own variables hold.
    """

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets

    def scanner(self, bottle: Bottle, added: str | None = None) -> Scanner:
        """`added` is the secret about to be used, which the scanner has to know whatever the clock says."""
        return self.search(bottle, added).scanner

    def search(self, bottle: Bottle, added: str | None = None) -> Search:
        now = monotonic()
        search, handed = bottle.search, bottle.handed.look(now)
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
        bottle.search = Search(bottle.snapshot, now + _SECRETS_SECONDS, scanner, handed)
        bottle.habits.clear()
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


def search_head(scanner: Scanner, target: Target, head: RequestHead, fields: list[Field]) -> Finding | None:
    """Tools send the same headers again and again: a block that was clean is not searched twice."""
    clean, block = scanner.clean_headers, head.travelling_bytes
    if fields is head.travelling and block in clean:
        return scanner.find_in_url(target.host, target.origin_form)
    headers = [(name, value) for _, name, value in fields]
    finding = scanner.find_in_head(target.host, target.origin_form, headers)
    if finding is None and fields is head.travelling and len(block) <= _REMEMBERED_BYTES:
        if len(clean) >= _REMEMBERED_BLOCKS:
            clean.clear()
        clean.add(block)
    return finding


def check_url(scanner: Scanner, target: Target, record: Record) -> None:
    """For a request that is refused anyway: nobody is told how to ask for a URL with a secret in it."""
    finding = scanner.find_in_head(target.host, target.origin_form, ())
    if finding is not None:
        raise _refusal(finding, record)


def conceal(scanner: Scanner, record: Record) -> None:
    """Records are kept and shown, and an agent can put a secret into any URL."""
    if scanner.find_in_head(record.host, record.path.encode("latin-1", "replace"), ()) is not None:
        record.path, record.ask = CONCEALED, None
        record.host = shown_host(scanner, record.host)


def shown_host(scanner: Scanner, host: str) -> str:
    """As it may be noted, in a record or in the log."""
    return host if scanner.find_in_head(host, b"", ()) is None else CONCEALED


def _refusal(finding: Finding, record: Record) -> Refusal:
    details = {"kind": finding.kind, "where": finding.where}
    record.verdict, record.reason, record.finding = "refused", "dlp", details
    hint = _OF_A_VARIABLE if finding.kind == PROVISIONED else ""
    return Refusal(
        "dlp",
        f"The request was stopped: its {finding.where} holds what looks like a secret ({finding.kind})."
        f" Take it out and try again. Where a route has a credential, the proxy adds it.{hint}",
        details={**details, "host": CONCEALED, "path": CONCEALED} if finding.where == "url" else details,
    )


def unsearchable(record: Record) -> Refusal:
    """Nobody knows what must not leave, nor whether the URL may be noted."""
    record.verdict, record.reason, record.path = "refused", "dlp-unreadable", CONCEALED
    return Refusal(
        "dlp-unreadable",
        "The request was stopped: it cannot be searched for the secrets that this bottle was given."
        " Tell the operator.",
        details={"path": CONCEALED},
    )


class Inspection:
    """Raises Refusal for what must not leave, BadAnswer for what must not come back."""

    def __init__(self, scanner: Scanner, route: Route, record: Record, hold: Hold | None = None) -> None:
        self._scanner = scanner
        self._hold = hold
        self._decoder_bytes = 0
        self._out = route.dlp.searches_requests
        self._record = record
        self._leaving: BodyScan | FrameScan | None = None
        self._returning: BodyScan | None = None
        self._scrubber: Scrubber | None = None
        if (route.auth is not None or route.dlp.incoming) and scanner.secrets:
            self._scrubber = Scrubber(scanner.literals)
        self._warns = route.dlp.incoming
        self._read: bytes | None = None  # the end of what was searched for orders to the agent

    @property
    def reads_ahead(self) -> bool:
        return isinstance(self._leaving, BodyScan)

    # --- what leaves

    def check_host(self, host: str) -> None:
        """A tunnel hides all but the name, which a pattern leaves for the bottle to choose."""
        finding = self._scanner.find_in_head(host, b"", ()) if self._out else None
        if finding is not None:
            raise self._refusal(finding)

    def check_request(self, target: Target, head: RequestHead, fields: list[Field]) -> None:
        """`fields` are the agent's own that travel on."""
        if not self._out:
            return
        finding = search_head(self._scanner, target, head, fields)
        if finding is not None:
            raise self._refusal(finding)
        self._record.url_is_clean = True
        if head.wants_websocket:
            self._leaving = FrameScan(self._scanner)
        elif head.length:
            try:
                codings = codings_of(_joined(head, b"content-encoding").decode("latin-1"))
            except Unreadable as error:
                raise self._unreadable(error) from error
            self._decoder_bytes = memory_of(codings)
            kind = _joined(head, b"content-type").lower()
            self._leaving = BodyScan(self._scanner, codings=codings, form=not kind or _FORM in kind)

    def outgoing(self, payload: bytes, *, last: bool) -> Steps:
        if self._leaving is None:
            return payload
        if self._decoder_bytes:
            self._keep("decoder", self._decoder_bytes)
        try:
            return (yield from self._leaving.steps(payload, last=last))
        except Found as found:
            raise self._refusal(found.finding) from None
        except Unreadable as error:
            raise self._unreadable(error) from error

    def _keep(self, what: str, size: int) -> None:
        if self._hold is not None:
            self._hold.keep(what, size)

    def check_trailers(self, trailers: list[tuple[bytes, bytes]]) -> None:
        finding = self._scanner.find_in_trailers(trailers) if self._out else None
        if finding is not None:
            raise self._refusal(finding)

    def _refusal(self, finding: Finding) -> Refusal:
        return _refusal(finding, self._record)

    def _unreadable(self, error: Unreadable) -> Refusal:
        self._record.verdict, self._record.reason = "refused", "dlp-unreadable"
        return Refusal(
            "dlp-unreadable",
            f"The request was stopped: it cannot be searched for secrets, because {error}."
            " Send it without compression.",
        )

    # --- what comes back

    def answer(self, head: ResponseHead, fields: list[Field]) -> list[Field]:
        """The fields as the bottle may see them. Cleans the reason phrase in place."""
        if self._scrubber is not None:
            fields = self._clean_head(head, fields, self._scrubber)
            if head.length:
                self._returning = self._coded_answer(head)
        if self._warns and head.status >= 200:
            kind = _joined(head, b"content-type").lower()
            self._read = b"" if not kind or kind.startswith(_READABLE) or b"+json" in kind else None
        return fields

    def _clean_head(self, head: ResponseHead, fields: list[Field], scrubber: Scrubber) -> list[Field]:
        together = b"\n".join([head.reason, *(b"%b: %b" % (name, value) for _, name, value in fields)])
        if scrubber.clean(together) == together:
            return fields
        self._warn("secret-returned")
        head.reason = scrubber.clean(head.reason)
        return [(key, name, scrubber.clean(value)) for key, name, value in fields
                if scrubber.clean(name) == name]  # fmt: skip

    def _coded_answer(self, head: ResponseHead) -> BodyScan | None:
        """It was asked for as it is, and comes compressed: it can be searched but not cleaned."""
        try:
            codings = codings_of(_joined(head, b"content-encoding").decode("latin-1"))
        except Unreadable as error:
            raise _unchecked(error) from error
        if not codings:
            return None
        self._keep("decoder of the answer", memory_of(codings))
        return BodyScan(self._scanner, codings=codings, secrets_only=True)

    @property
    def passes_on(self) -> bool:
        """Whether this answer is none of our business, as its head says."""
        return self._read is None and self._returning is None and self._scrubber is None

    def incoming(self, payload: bytes, *, last: bool) -> Steps:
        if self._read is not None:
            self._search_for_orders(payload)
        if self._returning is not None:
            try:
                return (yield from self._returning.steps(payload, last=last))
            except Found:
                self._warn("secret-returned")
                raise BadAnswer("The origin's answer repeats a secret, compressed.") from None
            except Unreadable as error:
                raise _unchecked(error) from error
        if self._scrubber is None:
            return payload
        before = self._scrubber.count
        cleaned = self._scrubber.feed(payload, last=last)
        if self._scrubber.count > before:
            self._warn("secret-returned")
        return cleaned

    def clean_trailers(self, trailers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        if self._scrubber is None:
            return trailers
        cleaned = [(name, self._scrubber.clean(value)) for name, value in trailers
                   if self._scrubber.clean(name) == name]  # fmt: skip
        if cleaned != trailers:
            self._warn("secret-returned")
        return cleaned

    def _search_for_orders(self, payload: bytes) -> None:
        text = (self._read or b"") + payload
        self._read = text[-OVERLAP:]
        if injections().first(text) is not None:
            self._read = None
            self._warn("injection")

    def _warn(self, what: str) -> None:
        if what not in self._record.warnings:
            self._record.warnings += (what,)


def _joined(head: Head, name: bytes) -> bytes:
    return b",".join(head.values(name))


def _unchecked(error: Unreadable) -> BadAnswer:
    return BadAnswer(f"The origin's answer cannot be searched for the secret that was sent, because {error}.")
