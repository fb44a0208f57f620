"""Data loss prevention on one request and its answer: what is searched, and what follows from a finding.

Trust boundary: the bottle must not send a secret, the origin must not send back the one that we added.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from egress.dlp.decoding import Decoding, Unreadable, codings_of
from egress.dlp.git_push import REQUEST as GIT_PUSH
from egress.dlp.git_push import Push
from egress.dlp.redaction import Scrubber
from egress.dlp.scanner import PROVISIONED, BodyScan, Finding, Found, Orders, Scanner, Steps, memory_of_scan
from egress.dlp.websocket import MEMORY_OF_FRAMES, FrameScan, FrameScrub
from egress.policy.routes import Dlp, Route
from egress.proxy.errors import BadAnswer, Refusal
from egress.proxy.http.heads import Field, Head, RequestHead, ResponseHead
from egress.proxy.http.targets import Target
from egress.proxy.state.active_scan import ActiveScan
from egress.proxy.state.memory import MemoryReservation
from egress.proxy.state.records import Record

WEBSOCKET_EXTENSIONS = b"sec-websocket-extensions"
_FORM = b"application/x-www-form-urlencoded"
_READABLE = tuple(b"text/ application/json application/xml application/xhtml application/javascript".split())
CONCEALED = "(concealed)"
_MOST_OF_A_NAME = 300
_OF_A_VARIABLE = (
    " What a secret variable of this bottle holds leaves only where an operator has switched the search off."
)
_UNSEARCHED = Dlp(out=False)
_REMEMBERED_ITEMS, _REMEMBERED_BYTES = 512, 2048


def search_head(scanner: Scanner, target: Target, head: RequestHead, fields: list[Field]) -> Finding | None:
    """Search a request's URL and headers. Neither is searched again where it was clean before."""
    clean, block, url = scanner.clean, head.travelling_bytes, (target.host, target.origin_form)
    if fields is not head.travelling or block not in clean:
        finding = scanner.find_in_head(*url, [(name, value) for _, name, value in fields])
    elif url not in clean:
        finding = scanner.find_in_url(*url)
    else:
        return None
    if finding is None and fields is head.travelling and max(len(block), len(url[1])) <= _REMEMBERED_BYTES:
        if len(clean) >= _REMEMBERED_ITEMS:
            clean.clear()
        clean |= {block, url}
    return finding


def check_url(search: ActiveScan, target: Target, record: Record) -> None:
    """Search the URL of a refused request: the refusal must not suggest asking for a URL with a secret.

    Raises Refusal.
    """
    if search.handed.problem:
        raise unsearchable(record)
    finding = search.scanner.find_in_head(target.host, target.origin_form, ())
    if finding is not None:
        raise _refusal(finding, record)


def conceal(search: ActiveScan, record: Record) -> None:
    """Remove a URL that holds a secret from the record, because records are kept and shown."""
    path = record.path.encode("latin-1", "replace")
    if search.handed.problem or search.scanner.find_in_head(record.host, path, ()) is not None:
        record.path, record.ask = CONCEALED, None
        if record.host != record.route:  # an operator chose the route's name
            record.host = shown_host(search, record.host)


def shown_host(search: ActiveScan, host: str) -> str:
    """The host as it may appear in a record or in the log."""
    is_clean = not search.handed.problem and search.scanner.find_in_head(host, b"", ()) is None
    return host if is_clean else CONCEALED


def _refusal(finding: Finding, record: Record, file: str = "") -> Refusal:
    details = {"kind": finding.kind, "where": finding.where} | ({"file": file} if file else {})
    record.verdict, record.reason, record.finding = "refused", "dlp", details
    hint = _OF_A_VARIABLE if finding.kind == PROVISIONED else ""
    place = f", in {file}" if file else ""
    again = "Take it out of every commit that is sent" if file else "Take it out and try again"
    return Refusal(
        "dlp",
        f"The request was stopped: its {finding.where} holds what looks like a secret ({finding.kind}){place}"
        f". {again}. Where a route has a credential, the proxy adds it.{hint}",
        details={**details, "host": CONCEALED, "path": CONCEALED} if finding.where == "url" else details,
    )


def unsearchable(record: Record) -> Refusal:
    """The refusal when the bottle's secrets are unknown, so that even the URL must not be recorded."""
    record.verdict, record.reason, record.path = "refused", "dlp-unreadable", CONCEALED
    return Refusal(
        "dlp-unreadable",
        "The request was stopped: it cannot be searched for the secrets that this bottle was given."
        " Tell the operator.",
        details={"path": CONCEALED},
    )


class Inspection:
    """Raises Refusal for what must not leave, BadAnswer for what must not come back."""

    # Here where most requests leave them as they are: one is made for each.
    _search_bytes = 0
    _sent_all = False
    _push: Push | None = None
    _stopped: Refusal | None = None  # for a push, which is read to its end first
    _leaving: BodyScan | FrameScan | None = None
    _returning: BodyScan | None = None
    _scrubber: Scrubber | None = None
    _frames: FrameScrub | None = None
    _orders: Orders | None = None  # to the agent, for which answers are searched
    _decoding: Decoding | None = None  # of an answer, only to find those orders

    def __init__(
        self, scanner: Scanner, route: Route, record: Record, hold: MemoryReservation | None = None
    ) -> None:
        self._scanner = scanner
        self._hold = hold
        self._out = route.dlp.searches_requests
        self._record = record
        self._route = route
        if (route.auth is not None or route.dlp.incoming) and scanner.secrets:
            self._scrubber = Scrubber(scanner.literals)
        self._warns = route.dlp.incoming

    @property
    def reads_frames(self) -> bool:
        return self._route.auth is not None or self._route.dlp != _UNSEARCHED

    @property
    def reads_ahead(self) -> bool:
        return isinstance(self._leaving, BodyScan)

    # --- what leaves

    def check_host(self, host: str) -> None:
        """Search the host of a tunnel, the only part that is visible: under a pattern the bottle chooses it.

        Raises Refusal.
        """
        finding = self._scanner.find_in_head(host, b"", ()) if self._out else None
        if finding is not None:
            raise self._refusal(finding)

    def check_request(self, target: Target, head: RequestHead, fields: list[Field]) -> None:
        """Search the head and prepare the search of the body. `fields` are the agent's own that travel."""
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
            self._search_bytes = memory_of_scan(codings, head.length)
            kind = _joined(head, b"content-type").lower()
            self._push = Push() if kind == GIT_PUSH else None
            keep = partial(self._keep, "containers")
            self._leaving = BodyScan(
                self._scanner, codings=codings, form=not kind or _FORM in kind, keep=keep
            )

    def outgoing(self, payload: bytes, *, last: bool) -> Steps:
        if self._sent_all:
            raise AssertionError("a body ends once")
        if self._stopped is not None:
            return self._end_of_stopped(last=last)
        if self._leaving is None:
            return payload
        if self._push is not None:
            self._push.feed(payload)
        self._keep("search", self._search_bytes)  # all at once, so that no upload is refused half-way
        try:
            released = yield from self._leaving.steps(payload, last=last)
        except Found as found:
            self._stopped = self._refusal(found.finding)
        except Unreadable as error:
            self._stopped = self._unreadable(error)
        if self._stopped is not None:
            return self._end_of_stopped(last=last)
        if isinstance(self._leaving, BodyScan) and (suspected := self._leaving.suspected) is not None:
            self._refusal(suspected)  # recorded even if the rest never comes
        if last:  # the answer may take long and does not need them
            self._leaving, self._sent_all = None, True
            self._keep("search", 0)
        return released

    def _end_of_stopped(self, *, last: bool) -> bytes:
        """Raises the refusal; for a push at its end, because git reads no answer before it has sent all."""
        refusal, push = self._stopped, self._push
        assert refusal is not None  # noqa: S101
        if push is not None and self._leaving is not None:
            sentence = f"egress refused ({refusal.reason}): {refusal.sentence}"
            refusal.git_report = push.report(sentence, _in_short(refusal))
            refusal.status = 200 if refusal.git_report else refusal.status
        self._leaving = None
        if self._hold is not None:
            self._hold.release()
        if last or refusal.git_report is None:
            raise refusal
        return b""

    def _keep(self, what: str, size: int) -> None:
        if self._hold is not None:
            self._hold.keep(what, size)

    def check_trailers(self, trailers: list[tuple[bytes, bytes]]) -> None:
        finding = self._scanner.find_in_trailers(trailers) if self._out else None
        if finding is not None:
            raise self._refusal(finding)

    def _refusal(self, finding: Finding) -> Refusal:
        file = finding.file
        if file and self._scanner.kind_in_quoted(file.encode()) is not None:
            file = CONCEALED
        return _refusal(finding, self._record, ascii(file[:_MOST_OF_A_NAME])[1:-1])

    def _unreadable(self, error: Unreadable) -> Refusal:
        self._record.verdict, self._record.reason = "refused", "dlp-unreadable"
        return Refusal(
            "dlp-unreadable",
            f"The request was stopped: it cannot be searched for secrets, because {error}."
            " Send it without compression.",
        )

    # --- what comes back

    def answer(self, head: ResponseHead, fields: list[Field]) -> list[Field]:
        """The fields as the bottle may see them. Cleans the reason phrase in place.

        Raises BadAnswer, or Refusal where there is no room for what searching it takes.
        """
        if head.status == 101 and self.reads_frames:
            self._keep("frames", MEMORY_OF_FRAMES)
            fields = [entry for entry in fields if entry[0] != WEBSOCKET_EXTENSIONS]  # we did not ask for any
        if self._scrubber is not None:
            fields = self._clean_head(head, fields, self._scrubber)
        if self._warns and (head.status == 101 or (head.status >= 200 and _is_text(head))):
            self._orders = Orders(partial(self._warn, "injection"))
        if self._scrubber is None and self._orders is None:
            return fields
        if head.status == 101:
            self._frames = FrameScrub(self._scanner.literals, self._orders)
        elif head.length:
            self._prepare_for_coded(head)
        return fields

    def _clean_head(self, head: ResponseHead, fields: list[Field], scrubber: Scrubber) -> list[Field]:
        together = b"\n".join([head.reason, *(b"%b: %b" % (name, value) for _, name, value in fields)])
        if scrubber.clean(together) == together:
            return fields
        self._warn("secret-returned")
        head.reason = scrubber.clean(head.reason)
        return [(key, name, scrubber.clean(value)) for key, name, value in fields
                if scrubber.clean(name) == name]  # fmt: skip

    def _prepare_for_coded(self, head: ResponseHead) -> None:
        """Prepare for an answer that is compressed against our wish: it can be searched, not cleaned."""
        try:
            codings = codings_of(_joined(head, b"content-encoding").decode("latin-1"))
        except Unreadable as error:
            self._cannot_read(error)
            return
        if not codings:
            return
        try:
            self._keep("search of the answer", memory_of_scan(codings, head.length))
        except Refusal:
            if self._scrubber is not None:
                raise
            self._orders = None  # see _cannot_read
            return
        if self._scrubber is None:
            self._decoding = Decoding(codings)
        else:
            self._returning = BodyScan(self._scanner, codings=codings, secrets_only=True, orders=self._orders)

    def _cannot_read(self, error: Unreadable) -> None:
        """Hold back an answer that could repeat a secret, but not for a mere hint. Raises BadAnswer."""
        if self._scrubber is not None:
            raise self._unchecked(error) from error
        self._orders = None

    def _unchecked(self, error: Unreadable) -> BadAnswer:
        sought = "orders to an agent" if self._scrubber is None else "the bottle's secrets"
        return BadAnswer(f"The origin's answer cannot be searched for {sought}, because {error}.")

    @property
    def passes_on(self) -> bool:
        """Whether this answer is not inspected, as its head shows."""
        return self._orders is None and self._returning is None and self._scrubber is None

    def incoming(self, payload: bytes, *, last: bool) -> Steps:
        if self._returning is not None:
            try:
                return (yield from self._returning.steps(payload, last=last))
            except Found:
                self._warn("secret-returned")
                raise BadAnswer("The origin's answer repeats a secret, compressed.") from None
            except Unreadable as error:
                raise self._unchecked(error) from error
        if self._frames is not None:
            return (yield from self._clean_frames(self._frames, payload))
        if self._orders is not None and not self._orders.found:
            yield from self._search_for_orders(self._orders, payload)
        if self._scrubber is None:
            return payload
        before = self._scrubber.count
        cleaned = yield from self._scrubber.steps(payload, last=last)
        if self._scrubber.count > before:
            self._warn("secret-returned")
        return cleaned

    def _clean_frames(self, frames: FrameScrub, payload: bytes) -> Steps:
        try:
            cleaned = yield from frames.steps(payload)
        except Unreadable as error:
            raise self._unchecked(error) from error
        if frames.count:
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

    def _search_for_orders(self, orders: Orders, payload: bytes) -> Iterator[None]:
        if self._decoding is None:
            yield from orders.steps(payload)
            return
        try:
            for piece in self._decoding.feed(payload):
                yield from orders.steps(piece)
                yield
        except Unreadable as error:
            self._cannot_read(error)

    def _warn(self, what: str) -> None:
        if what not in self._record.warnings:
            self._record.warnings += (what,)


def _in_short(refusal: Refusal) -> str:
    """The refusal in the one line that git shows for each reference."""
    file = refusal.details.get("file")
    return f"egress refused ({refusal.reason})" + (f": {file}" if file else "")


def _joined(head: Head, name: bytes) -> bytes:
    return b",".join(head.values(name))


def _is_text(head: Head) -> bool:
    kind = _joined(head, b"content-type").lower()
    return not kind or kind.startswith(_READABLE) or b"+json" in kind
