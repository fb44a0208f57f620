"""Finds a bottle's own secrets and well-known token shapes in what leaves it. Pure.

Trust boundary: all text is hostile. A finding names the kind and the place, never the value. This catches
accidents and plain attempts: it does not see data that a bottle encrypts or encodes in a way of its own.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import cache, partial
from urllib.parse import unquote_to_bytes

from egress.dlp.containers import Allowance, Containers
from egress.dlp.decoding import Decoding, memory_of
from egress.dlp.encodings import APART, LAYERS, OVERLAP, layers, run_before, undone
from egress.dlp.encodings import PART as ENCODED_PART
from egress.dlp.expressions import Matcher
from egress.dlp.findings import PROVISIONED, Finding, Found
from egress.dlp.secret_encodings import SHORTEST_ENCODED, forms_of
from egress.dlp.token_shapes import INJECTIONS, SHAPES

__all__ = ["OVERLAP", "PROVISIONED", "Finding", "Found", "Matcher", "Scanner"]

_PERCENT = ord("%")  # a set for lookups by byte: searching bytes in bytes takes ten times as long
# A body is searched in windows that start at fixed places, however it arrives. A body that fits into a single
# window is searched completely before any of it is released; of a longer one, the end of the searched part is
# held back.
WINDOW = 64 * 1024
PART = 16 * 1024  # what is searched in one step where a step may cost much: encodings, and decoded data
CODED_HOLD_BACK = 256 * 1024  # a block of zstd is only decoded when it is complete
_WRAPPING = b"\r\n\t \0"  # between the lines of base64 and the digits of a dump; every other byte of UTF-16
_LINES_IN_JSON = re.compile(rb"\\[rn]")

Headers = Sequence[tuple[bytes, bytes]]
Steps = Generator[None, None, bytes]  # bounded work between two `yield`s; then the result


@cache
def shapes() -> Matcher:
    """The compiled token shapes, shared by all bottles. Compiling takes a third of a second."""
    return Matcher(shape.encode("ascii") for shape in SHAPES.values())


@cache
def injections() -> Matcher:
    return Matcher((phrase.encode("ascii") for phrase in INJECTIONS), caseless=True)


_KINDS = tuple(SHAPES)


class Scanner:
    """The scanner of one bottle. `secrets` are those that the proxy can add, and its secret variables."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self.secrets = frozenset(secrets)
        forms = sorted({form for secret in self.secrets for form in forms_of(secret)})
        self.literals = Matcher(forms, literal=True, caseless=True)
        # A few bytes occur by chance in decoded noise.
        long = frozenset(secret for secret in self.secrets if len(secret.encode()) >= SHORTEST_ENCODED)
        self._long = self if long == self.secrets else Scanner(long)
        self._shapes = shapes()
        # Whole header blocks and URLs that were searched before. Bounded by the caller.
        self.clean: set[bytes | tuple[str, bytes]] = set()

    def kind_in(self, text: bytes) -> str | None:
        if self.literals.first(text) is not None:
            return PROVISIONED
        number = self._shapes.first(text)
        return None if number is None else _KINDS[number]

    def kind_in_encoded(self, text: bytes, before: int | None = 0) -> str | None:
        """The same for what is encoded in the text, once or twice. `before` is for `undone`."""
        decoded = undone(text, before)  # usually there is nothing, and then this is the only cost
        if not decoded:
            return None
        find = self._long.kind_in
        deeper = (kind for layer in layers(decoded, count=LAYERS - 1) if (kind := find(layer)) is not None)
        return find(decoded) or next(deeper, None)

    def kind_of_secret_in(self, text: bytes) -> str | None:
        return PROVISIONED if self.literals.first(text) is not None else None

    def find_in_head(self, host: str, origin_form: bytes, headers: Headers) -> Finding | None:
        """Search a request's head. `headers` are without those that the proxy adds."""
        url = b"%b\n%b" % (
            host.encode("ascii"),
            origin_form,
        )  # separately: a webhook may be sent to its owner
        if (kind := self.kind_in_quoted(APART.join([url, *_texts(headers)]))) is None:
            return None
        in_url = self.kind_in_quoted(url)
        return Finding(in_url, "url") if in_url else Finding(kind, "header")

    def find_in_url(self, host: str, origin_form: bytes) -> Finding | None:
        kind = self.kind_in_quoted(b"%b\n%b" % (host.encode("ascii"), origin_form))
        return None if kind is None else Finding(kind, "url")

    def kind_in_quoted(self, text: bytes) -> str | None:
        """Search the text as it is, with escapes decoded once and twice, and with other encodings decoded."""
        if _PERCENT in text:
            once = unquote_to_bytes(text)
            text = APART.join([text, once, unquote_to_bytes(once)])
        return self.kind_in(text) or self.kind_in_encoded(text)

    def find_in_trailers(self, trailers: Headers) -> Finding | None:
        kind = self.kind_in_quoted(APART.join(_texts(trailers))) if trailers else None
        return None if kind is None else Finding(kind, "trailer")


def _texts(headers: Headers) -> list[bytes]:
    """The fields as they are, and their values joined: a secret may be split over two parts."""
    lines = [b"%b: %b" % header for header in headers]
    lines += [_credentials(value) for _, value in headers if value[:6].lower() == b"basic "]
    return [b"\n".join(lines), b"".join(value for _, value in headers)]


def _credentials(basic: bytes) -> bytes:
    try:
        return base64.b64decode(basic[6:].strip())
    except (binascii.Error, ValueError):
        return b""


def memory_of_scan(codings: Sequence[str], length: int) -> int:
    """How many bytes a BodyScan can keep at once, besides its input. A negative length means any length."""
    hold_back, texts = (CODED_HOLD_BACK, 2) if codings else (OVERLAP, 1)
    kept, window = WINDOW + hold_back, WINDOW
    if length >= 0:
        kept, window = min(kept, length), min(window, length)
    return kept + window + texts * Text.MEMORY + OVERLAP + memory_of(codings)


class Orders:
    """Looks for phrases that give orders to an agent, in texts that arrive in pieces, until one is found."""

    def __init__(self, report: Callable[[], None]) -> None:
        self._report = report
        self._end = b""
        self.found = False

    def scan(self, piece: bytes, *, last: bool = False) -> None:
        """Search a piece. After the `last` piece, another text begins."""
        if self.found:
            return
        text = self._end + piece
        self._end = b"" if last else text[-OVERLAP:]
        if injections().first(text) is not None:
            self.found = True
            self._report()

    def steps(self, piece: bytes) -> Iterator[None]:
        """The same in steps, for a piece that may be long: data decoded at once can be megabytes."""
        for start in range(0, len(piece), WINDOW):
            self.scan(piece[start : start + WINDOW])
            yield


class BodyScan:
    """Scans a body in transit: `steps` yields what may be sent on, and raises Found or Unreadable.

    With `secrets_only`, as for answers, token shapes do not matter, and neither containers nor encodings are
    opened. `orders` are searched for in decoded data. `keep` is called with the size that open containers
    keep.
    """

    def __init__(
        self,
        scanner: Scanner,
        *,
        codings: Sequence[str] = (),
        form: bool = False,
        secrets_only: bool = False,
        orders: Orders | None = None,
        keep: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._orders = orders
        self._allowance = Allowance(keep)
        self._containers = None if secrets_only else Containers(partial(Text, scanner), self._allowance)
        self._as_sent = Text(scanner, form=form and not codings, secrets_only=secrets_only)
        self._decoding = Decoding(codings) if codings else None
        self._decoded = Text(scanner, form=form, secrets_only=secrets_only)
        self._hold_back = CODED_HOLD_BACK if codings else OVERLAP
        self._unseen = bytearray()
        self._pending = bytearray()

    @property
    def suspected(self) -> Finding | None:
        """A finding in a container that may name it later. From then on, nothing is released."""
        return None if self._containers is None else self._containers.suspected

    def steps(self, data: bytes, *, last: bool) -> Steps:
        is_whole = last and not (self._unseen or self._pending)  # the usual case: nothing has to be held back
        start = 0
        while (end := start + WINDOW - len(self._unseen)) < len(data):
            window = self._take_unseen(data[start:end])
            yield from self._scan_decoded(window, last=False)
            if not is_whole:
                self._pending += window
            start = end
        if not last:
            self._unseen += data[start:]
            return self._release()
        window = self._take_unseen(data[start:])
        yield from self._scan_decoded(window, last=True)
        if self._containers is not None:
            self._containers.end()
            self._containers.close()
        pending, self._pending = self._pending, bytearray()
        return data if is_whole else bytes(pending) + window

    def _take_unseen(self, more: bytes) -> bytes:
        unseen, self._unseen = self._unseen, bytearray()
        return bytes(unseen) + more

    def _release(self) -> bytes:
        if self.suspected is not None:
            self._pending.clear()  # because none of it is sent any more
        cut = len(self._pending) - self._hold_back
        if cut <= 0:
            return b""
        released = bytes(self._pending[:cut])
        self._pending = self._pending[cut:]  # copied, because a slice keeps the whole buffer
        return released

    def _scan_decoded(self, window: bytes, *, last: bool) -> Iterator[None]:
        self._allowance.coded += len(window)
        yield from self._as_sent.steps(window, last=last)
        if self._decoding is None:
            yield from self._open(window)
        else:
            for piece in self._decoding.feed(window):
                yield from self._decoded.steps(piece, last=False)
                yield from self._open(piece)
                if self._orders is not None:
                    yield from self._orders.steps(piece)
                yield  # also if nothing was decoded: that took time too
            if last:
                self._decoding.end()
                self._decoded.scan(b"", last=True)

    def _open(self, data: bytes) -> Iterator[None]:
        if self._containers is not None:
            yield from self._containers.steps(data)


class Text:
    """One text that arrives in pieces, searched as it is, without its line breaks and spaces, as a form's
    values, and in its encoded parts.
    """

    MEMORY = 3 * OVERLAP  # each way of reading has an overlap of its own

    def __init__(self, scanner: Scanner, *, form: bool = False, secrets_only: bool = False) -> None:
        self._scanner = scanner
        self._form = form
        self._secrets_only = secrets_only
        self._plain = self._unwrapped = self._values = self._half_escape = b""
        self._was_wrapped = False
        self._run_before: int | None = 0

    def steps(self, piece: bytes, *, last: bool) -> Iterator[None]:
        size = PART if self._form else WINDOW
        for start in range(0, len(piece), size):
            yield from self._scan(piece[start : start + size], last=last and start + size >= len(piece))
        if last and not piece:
            self.scan(piece, last=True)

    def scan(self, piece: bytes, *, last: bool) -> None:
        for _ in self._scan(piece, last=last):
            pass

    def _scan(self, piece: bytes, *, last: bool) -> Iterator[None]:
        text = self._plain + piece
        self._plain = text[-OVERLAP:]
        self._search(text)
        if self._scanner.literals.expressions:
            self._scan_unwrapped(piece)
        if self._form:
            self._scan_values(piece, last=last)
        yield
        if not self._secrets_only:
            yield from self._scan_encoded(text, last=last)

    def _scan_encoded(self, text: bytes, *, last: bool) -> Iterator[None]:
        for start in range(0, len(text), ENCODED_PART):
            part = text[max(0, start - OVERLAP) : start + ENCODED_PART]
            if (kind := self._scanner.kind_in_encoded(part, self._run_before)) is not None:
                raise Found(Finding(kind, "body"))
            if not last or start + ENCODED_PART < len(text):
                self._run_before = run_before(part, max(0, len(part) - OVERLAP), self._run_before)
            yield

    def _scan_unwrapped(self, piece: bytes) -> None:
        bare = _LINES_IN_JSON.sub(b"", piece).translate(None, _WRAPPING)
        if len(bare) == len(piece) and not self._was_wrapped:
            self._unwrapped = self._plain  # nothing new to see
            return
        self._was_wrapped = True
        text = self._unwrapped + bare
        self._unwrapped = text[-OVERLAP:]
        if self._scanner.literals.first(text) is not None:
            raise Found(Finding(PROVISIONED, "body"))

    def _scan_values(self, piece: bytes, *, last: bool) -> None:
        coded = self._half_escape + piece
        cut = len(coded) if last else _before_half_escape(coded)
        self._half_escape = coded[cut:]
        text = self._values + unquote_to_bytes(coded[:cut].replace(b"+", b" "))
        self._values = text[-OVERLAP:]
        self._search(text)

    def _search(self, text: bytes) -> None:
        find = self._scanner.kind_of_secret_in if self._secrets_only else self._scanner.kind_in
        if (kind := find(text)) is not None:
            raise Found(Finding(kind, "body"))


def _before_half_escape(coded: bytes) -> int:
    at = coded.rfind(b"%", max(0, len(coded) - 2))
    return at if at >= 0 else len(coded)
