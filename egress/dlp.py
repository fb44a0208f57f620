"""Data loss prevention: finds a bottle's own secrets and well-known token shapes in what leaves. Pure.

Trust boundary: all text is hostile. A finding names the kind and the place, never the value. It is a net for
accidents and for plain attempts: what a bottle encrypts, or encodes in a way of its own, is not seen.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import unquote_to_bytes

import hyperscan

from .decoding import Decoding, memory_of
from .secret_forms import forms_of
from .token_shapes import INJECTIONS, SHAPES

PROVISIONED = "provisioned-secret"
_PERCENT = ord("%")  # asked for in bytes: bytes in bytes take ten times as long
_APART = b"\n\0\n"  # between texts that nothing may be found across: no shape has it in it
# A body is looked at in windows that start at fixed places, however it arrives. One that fits into a single
# window is known whole before any of it is let go; of a longer one, the end of what was looked at stays.
WINDOW = 64 * 1024
OVERLAP = 4 * 1024  # longer than anything that is searched for
PART = 16 * 1024  # what is searched in one step where a step may cost much: forms, and what was decoded
CODED_HOLD_BACK = 256 * 1024  # a block of zstd is decoded only when all of it is there
_WRAPPING = b"\r\n\t \0"  # between the lines of base64 and the digits of a dump; every other byte of UTF-16
_LINES_IN_JSON = re.compile(rb"\\[rn]")

Headers = Sequence[tuple[bytes, bytes]]
Steps = Generator[None, None, bytes]  # bounded work between one `yield` and the next; then the result


@dataclass(frozen=True, slots=True)
class Finding:
    """`kind` is `provisioned-secret` or a key of SHAPES; `where` is url, header, body or trailer."""

    kind: str
    where: str


class Found(Exception):
    def __init__(self, finding: Finding) -> None:
        super().__init__(f"{finding.kind} in {finding.where}")
        self.finding = finding


class Matcher:
    """One set of expressions, searched for together.

    Blocks only: the streams of Hyperscan's Python binding (0.9.1) are freed while still in use.
    """

    def __init__(
        self, expressions: Iterable[bytes], *, literal: bool = False, caseless: bool = False
    ) -> None:
        self.expressions = tuple(expressions)
        self._database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        self._scan = self._database.scan  # asked for every request
        if self.expressions:
            self._database.compile(
                expressions=self.expressions,
                ids=range(len(self.expressions)),
                elements=len(self.expressions),
                flags=hyperscan.HS_FLAG_CASELESS if caseless else 0,
                literal=literal,
            )

    def first(self, text: bytes) -> int | None:
        """The number of an expression that matches."""
        if not self.expressions:
            return None
        found: list[int] = []
        try:
            self._scan(text, _first, 0, found)
        except hyperscan.ScanTerminated:
            return found[0]
        return None

    def ends(self, text: bytes) -> list[tuple[int, int]]:
        """All matches: the expression's number and where the match ends."""
        found: list[tuple[int, int]] = []
        if self.expressions:
            self._scan(text, _each, 0, found)
        return found


def _first(number: int, _start: int, _end: int, _flags: int, found: Any) -> bool:
    found.append(number)
    return True


def _each(number: int, _start: int, end: int, _flags: int, found: Any) -> None:
    found.append((number, end))


@cache
def shapes() -> Matcher:
    """Compiled once, which takes a third of a second, and shared by all bottles."""
    return Matcher(shape.encode("ascii") for shape in SHAPES.values())


@cache
def injections() -> Matcher:
    return Matcher((phrase.encode("ascii") for phrase in INJECTIONS), caseless=True)


_KINDS = tuple(SHAPES)


class Scanner:
    """For one bottle, whose `secrets` are those that the proxy can add, and those that it was handed."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self.secrets = frozenset(secrets)
        forms = sorted({form for secret in self.secrets for form in forms_of(secret)})
        self.literals = Matcher(forms, literal=True, caseless=True)
        self._shapes = shapes()
        self.clean_headers: set[bytes] = (
            set()
        )  # whole blocks that were searched before; bounded by whoever adds

    def kind_in(self, text: bytes) -> str | None:
        if self.literals.first(text) is not None:
            return PROVISIONED
        number = self._shapes.first(text)
        return None if number is None else _KINDS[number]

    def find_in_head(self, host: str, origin_form: bytes, headers: Headers) -> Finding | None:
        """`headers` are those that leave, without what the proxy adds."""
        url = b"%b\n%b" % (host.encode("ascii"), origin_form)  # apart: a webhook may be sent to its owner
        if (kind := self.kind_in_quoted(_APART.join([url, b"\n".join(_lines(headers))]))) is None:
            return None
        in_url = self.kind_in_quoted(url)
        return Finding(in_url, "url") if in_url else Finding(kind, "header")

    def find_in_url(self, host: str, origin_form: bytes) -> Finding | None:
        kind = self.kind_in_quoted(b"%b\n%b" % (host.encode("ascii"), origin_form))
        return None if kind is None else Finding(kind, "url")

    def kind_in_quoted(self, text: bytes) -> str | None:
        """As it is, and with escapes undone once and twice."""
        if _PERCENT in text:
            once = unquote_to_bytes(text)
            text = _APART.join([text, once, unquote_to_bytes(once)])
        return self.kind_in(text)

    def find_in_trailers(self, trailers: Headers) -> Finding | None:
        kind = self.kind_in_quoted(b"\n".join(_lines(trailers))) if trailers else None
        return None if kind is None else Finding(kind, "trailer")


def _lines(headers: Headers) -> list[bytes]:
    lines = [b"%b: %b" % header for header in headers]
    return lines + [_credentials(value) for _, value in headers if value[:6].lower() == b"basic "]


def _credentials(basic: bytes) -> bytes:
    try:
        return base64.b64decode(basic[6:].strip())
    except (binascii.Error, ValueError):
        return b""


def memory_of_scan(codings: Sequence[str], length: int) -> int:
    """How many bytes a BodyScan can keep at once, besides what it is given; of any length if that is < 0."""
    hold_back, texts = (CODED_HOLD_BACK, 2) if codings else (OVERLAP, 1)
    kept, window = WINDOW + hold_back, WINDOW
    if length >= 0:
        kept, window = min(kept, length), min(window, length)
    return kept + window + texts * Text.MEMORY + OVERLAP + memory_of(codings)


class Orders:
    """Looks for phrases that give orders to an agent in texts that come in pieces, until one is found."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._end = b""
        self.found = False

    def look_at(self, piece: bytes, *, last: bool = False) -> None:
        """What follows the `last` piece is another text."""
        if self.found:
            return
        text = self._end + piece
        self._end = b"" if last else text[-OVERLAP:]
        if injections().first(text) is not None:
            self.found = True
            self._tell()

    def steps(self, piece: bytes) -> Iterator[None]:
        """The same for one that may be long: what is decoded at once can be megabytes."""
        for start in range(0, len(piece), WINDOW):
            self.look_at(piece[start : start + WINDOW])
            yield


class BodyScan:
    """A body on its way: `steps` gives back what may go on, and raises Found or Unreadable.

    With `secrets_only`, token shapes are of no interest. `orders` are looked for in what is decoded.
    """

    def __init__(
        self,
        scanner: Scanner,
        *,
        codings: Sequence[str] = (),
        form: bool = False,
        secrets_only: bool = False,
        orders: Orders | None = None,
    ) -> None:
        self._orders = orders
        self._as_sent = Text(scanner, form=form and not codings, secrets_only=secrets_only)
        self._decoding = Decoding(codings) if codings else None
        self._decoded = Text(scanner, form=form, secrets_only=secrets_only)
        self._hold_back = CODED_HOLD_BACK if codings else OVERLAP
        self._unseen = bytearray()
        self._held = bytearray()

    def steps(self, data: bytes, *, last: bool) -> Steps:
        is_whole = last and not (self._unseen or self._held)  # as most are: nothing has to be held
        start = 0
        while (end := start + WINDOW - len(self._unseen)) < len(data):
            window = self._take_unseen(data[start:end])
            yield from self._look_at(window, last=False)
            if not is_whole:
                self._held += window
            start = end
        if not last:
            self._unseen += data[start:]
            return self._release()
        window = self._take_unseen(data[start:])
        yield from self._look_at(window, last=True)
        held, self._held = self._held, bytearray()
        return data if is_whole else bytes(held) + window

    def _take_unseen(self, more: bytes) -> bytes:
        unseen, self._unseen = self._unseen, bytearray()
        return bytes(unseen) + more

    def _release(self) -> bytes:
        cut = len(self._held) - self._hold_back
        if cut <= 0:
            return b""
        released = bytes(self._held[:cut])
        self._held = self._held[cut:]  # anew: one that is cut keeps what it had
        return released

    def _look_at(self, window: bytes, *, last: bool) -> Iterator[None]:
        yield from self._as_sent.steps(window, last=last)
        if self._decoding is not None:
            for piece in self._decoding.feed(window):
                yield from self._decoded.steps(piece, last=False)
                if self._orders is not None:
                    yield from self._orders.steps(piece)
                yield  # also where nothing came out: that took its time too
            if last:
                self._decoding.end()
                self._decoded.look_at(b"", last=True)


class Text:
    """One text in pieces, searched as it is, without its line breaks and spaces, and as a form's values."""

    MEMORY = 3 * OVERLAP  # each way has an end that it looks back to

    def __init__(self, scanner: Scanner, *, form: bool = False, secrets_only: bool = False) -> None:
        self._scanner = scanner
        self._form = form
        self._secrets_only = secrets_only
        self._plain = self._unwrapped = self._values = self._half_escape = b""
        self._was_wrapped = False

    def steps(self, piece: bytes, *, last: bool) -> Iterator[None]:
        size = PART if self._form else WINDOW
        for start in range(0, len(piece), size):
            self.look_at(piece[start : start + size], last=last and start + size >= len(piece))
            yield
        if last and not piece:
            self.look_at(piece, last=True)

    def look_at(self, piece: bytes, *, last: bool) -> None:
        text = self._plain + piece
        self._plain = text[-OVERLAP:]
        self._search(text)
        if self._scanner.literals.expressions:
            self._look_at_unwrapped(piece)
        if self._form:
            self._look_at_values(piece, last=last)

    def _look_at_unwrapped(self, piece: bytes) -> None:
        bare = _LINES_IN_JSON.sub(b"", piece).translate(None, _WRAPPING)
        if len(bare) == len(piece) and not self._was_wrapped:
            self._unwrapped = self._plain  # nothing new to see
            return
        self._was_wrapped = True
        text = self._unwrapped + bare
        self._unwrapped = text[-OVERLAP:]
        if self._scanner.literals.first(text) is not None:
            raise Found(Finding(PROVISIONED, "body"))

    def _look_at_values(self, piece: bytes, *, last: bool) -> None:
        coded = self._half_escape + piece
        cut = len(coded) if last else _before_half_escape(coded)
        self._half_escape = coded[cut:]
        text = self._values + unquote_to_bytes(coded[:cut].replace(b"+", b" "))
        self._values = text[-OVERLAP:]
        self._search(text)

    def _search(self, text: bytes) -> None:
        if self._secrets_only:
            kind = PROVISIONED if self._scanner.literals.first(text) is not None else None
        else:
            kind = self._scanner.kind_in(text)
        if kind is not None:
            raise Found(Finding(kind, "body"))


def _before_half_escape(coded: bytes) -> int:
    at = coded.rfind(b"%", max(0, len(coded) - 2))
    return at if at >= 0 else len(coded)
