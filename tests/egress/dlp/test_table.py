"""Containers and encodings: what is found in them, and what is documented as not found."""

from __future__ import annotations

import base64
import binascii
import bz2
import codecs
import gzip
import io
import json
import lzma
import quopri
import random
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable

import pytest
import zstandard

from egress.dlp.scanner import PROVISIONED, BodyScan, Finding, Found, Scanner
from tests.support import ROOT
from tests.support.git_packs import Pack, copy, delta, insert
from tests.support.steps import finish
from tests.support.token_examples import EXAMPLES

SECRET = "correct-Horse/battery+staple"
TOKEN = EXAMPLES["github-token"]
Packing = Callable[[bytes], bytes]


def tar(name: str, data: bytes, mode: str = "w") -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:  # type: ignore[call-overload]
        member = tarfile.TarInfo(name)
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return file.getvalue()


def zipped(*members: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return file.getvalue()


class _Unseekable(io.BytesIO):
    def seekable(self) -> bool:
        return False

    def seek(self, *_: int) -> int:
        raise OSError

    def tell(self) -> int:
        raise OSError


def streamed_zip(data: bytes) -> bytes:
    """Its sizes come after the data."""
    file = _Unseekable()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:  # type: ignore[arg-type]
        archive.writestr("a.txt", data)
    return file.getvalue()


def encrypted_zip(data: bytes) -> bytes:
    archive = bytearray(zipped(("a.txt", data)))
    archive[6] |= 1  # as its head says; the data is not what it was either
    start = 30 + len("a.txt")
    archive[start : start + 20] = bytes(byte ^ 0x5A for byte in archive[start : start + 20])
    return bytes(archive)


def wheel(data: bytes) -> bytes:
    return zipped(("left_pad/__init__.py", b"x = 1\n"), ("left_pad/settings.py", data))


def part(data: bytes) -> bytes:
    """An upload as browsers and curl make it."""
    head = b'--x\r\nContent-Disposition: form-data; name="f"; filename="a.bin"\r\n\r\n'
    return head + data + b"\r\n--x--\r\n"


def pack(data: bytes) -> bytes:
    return Pack().blob(data).bytes


def pack_of_delta(data: bytes) -> bytes:
    """The first half of it stands in the base, in another place."""
    half = len(data) // 2
    base = b"x" * 50 + data[:half] + b"y" * 50
    change = delta(base, copy(50, half), insert(data[half:]))
    return Pack().blob(base).change(change).bytes


def pack_of_addition(data: bytes) -> bytes:
    """The base is not in the pack."""
    change = delta(bytes(500), copy(0, 100), insert(data), copy(100, 100))
    return Pack().change_of(b"\x11" * 20, change).bytes


def pack_of_half_addition(data: bytes) -> bytes:
    half = len(data) // 2
    base = b"x" * 50 + data[:half] + b"y" * 50
    return Pack().change_of(b"\x11" * 20, delta(base, copy(50, half), insert(data[half:]))).bytes


def some_escapes(beginning: str, end: str = "", *, decimal: bool = False) -> Packing:
    """Every third character is one."""

    def escape(data: bytes) -> bytes:
        written = [f"{byte}" if decimal else f"{byte:02x}" for byte in data]
        letters = data.decode()
        return "".join(
            letters[place] if place % 3 else f"{beginning}{written[place]}{end}" for place in range(len(data))
        ).encode()

    return escape


def among_words(data: bytes) -> bytes:
    """What is short or without a pattern is often left as it is."""
    words = random.Random(5).choices(["some", "words", "around", "it", "and", "other", "letters"], k=400)
    return " ".join(words[:200]).encode() + b" " + data + b" " + " ".join(words[200:]).encode()


def in_base64(data: bytes) -> bytes:
    return base64.b64encode(b"{" + data + b"}")


CONTAINERS: dict[str, Packing] = {
    "gzip without a Content-Encoding": gzip.compress,
    "tar": lambda data: tar("a.txt", data),
    "tar.gz": lambda data: gzip.compress(tar("a/" + "x" * 200 + "/a.txt", data)),
    "zip": lambda data: zipped(("a.txt", b"harmless"), ("b.txt", data)),
    "zip, stored": lambda data: zipped(("a.txt", data), method=zipfile.ZIP_STORED),
    "zip, sizes after the data": streamed_zip,
    "wheel": wheel,
    "wheel in tar.gz": lambda data: gzip.compress(tar("a.whl", wheel(data))),
    "zip in zip in zip": lambda data: zipped(("a.zip", zipped(("b.zip", zipped(("c", data)))))),
    "archive in a form's part": lambda data: part(gzip.compress(data)),
    "git pack": pack,
    "git pack, delta of an object in it": pack_of_delta,
    "git pack, what a delta adds to an object elsewhere": pack_of_addition,
    "git bundle": lambda data: b"# v2 git bundle\n" + b"0" * 40 + b" HEAD\n\n" + pack(data),
}
ENCODINGS: dict[str, Packing] = {
    "base64": in_base64,
    "base64url": lambda data: base64.urlsafe_b64encode(b"??>" + data).rstrip(b"="),
    "base64 in lines": lambda data: base64.encodebytes(b"." * 50 + data),
    "base64 in lines in JSON": lambda data: json.dumps(
        base64.encodebytes(b"." * 50 + data).decode()
    ).encode(),
    "base64 behind other letters": lambda data: b"data/" + base64.b64encode(data),
    "base64 twice": lambda data: base64.b64encode(b"." + base64.b64encode(b": " + data)),
    "base64 of JSON": lambda data: base64.b64encode(json.dumps({"a": {"b": data.decode()}}).encode()),
    "base64 of JSON with escapes": lambda data: base64.b64encode(some_escapes("\\u00")(data)),
    "base64 of UTF-16": lambda data: base64.b64encode(data.decode().encode("utf-16-le")),
    "base32": lambda data: base64.b32encode(b"k: " + data),
    "base32, lower case": lambda data: base64.b32encode(data).lower(),
    "hex": lambda data: data.hex().encode(),
    "hex twice": lambda data: data.hex().encode().hex().encode(),
    "hex in lines": lambda data: b"\n".join(re.findall(b".{1,20}", (b"." * 9 + data).hex().encode())),
    "hex with colons": lambda data: data.hex(":").upper().encode(),
    "hex with spaces": lambda data: data.hex(" ").encode(),
    "hex with 0x and commas": lambda data: ",\n  ".join(f"0x{byte:02x}" for byte in data).encode(),
    "hex in words of four bytes": lambda data: data.hex(" ", -4).encode(),
    "some \\x escapes": some_escapes("\\x"),
    "some \\u escapes": some_escapes("\\u00"),
    "some \\u{} escapes": some_escapes("\\u{", "}"),
    "some % escapes": some_escapes("%"),
    "some numeric entities": some_escapes("&#", ";", decimal=True),
    "some hexadecimal entities": some_escapes("&#x", ";"),
    "UTF-16": lambda data: data.decode().encode("utf-16"),
    "UTF-16, big end first": lambda data: data.decode().encode("utf-16-be"),
    "UTF-32": lambda data: data.decode().encode("utf-32"),
    "base64 in tar.gz": lambda data: gzip.compress(tar("a.txt", base64.b64encode(data))),
}
NOT_FOUND: dict[str, Packing] = {
    "bzip2": lambda data: bz2.compress(among_words(data)),
    "xz": lambda data: lzma.compress(among_words(data)),
    "zstd without a Content-Encoding": lambda data: zstandard.compress(among_words(data)),
    "zlib without a Content-Encoding": lambda data: zlib.compress(among_words(data)),
    "zip, encrypted": encrypted_zip,
    "zip, packed with bzip2 or LZMA": lambda data: zipped(
        ("a.txt", among_words(data)), method=zipfile.ZIP_LZMA
    ),
    "archive in base64": lambda data: base64.b64encode(gzip.compress(data)),
    "git pack, half in a delta and half in an object elsewhere": pack_of_half_addition,
    "base64 four times": lambda data: in_base64(in_base64(in_base64(in_base64(data)))),
    "base85": base64.b85encode,
    "quoted-printable": lambda data: quopri.encodestring(data.replace(b"-", b"=").replace(b"_", b"=")),
    "uuencode": lambda data: binascii.b2a_uu(data[:45]),
    "octal escapes": lambda data: "".join(f"\\{byte:03o}" for byte in data).encode(),
    "decimal numbers": lambda data: json.dumps(list(data)).encode(),
    "rot13": lambda data: codecs.encode(data.decode(), "rot13").encode(),
    "backwards": lambda data: data[::-1],
    "a letter between each two": lambda data: b"~".join(data[at : at + 1] for at in range(len(data))),
}
WHAT = {"secret": (SECRET, PROVISIONED), "token": (TOKEN, "github-token")}


def scan(body: bytes, cuts: int = 0) -> Finding | None:
    """The kind alone: where it is found is tested elsewhere."""
    search, size = BodyScan(Scanner([SECRET])), cuts or len(body)
    try:
        for start in range(0, len(body), size):
            finish(search.steps(body[start : start + size], last=False))
        finish(search.steps(b"", last=True))
    except Found as found:
        return Finding(found.finding.kind, found.finding.where)
    return None


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("name", [*CONTAINERS, *ENCODINGS])
def test_it_is_found(name: str, what: str) -> None:
    text, kind = WHAT[what]
    body = {**CONTAINERS, **ENCODINGS}[name](text.encode())
    for cuts in (0, 1, 7):
        assert scan(body, cuts) == Finding(kind, "body")
    assert scan({**CONTAINERS, **ENCODINGS}[name](b"x" + text[1:].encode()[::-1])) is None


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("name", NOT_FOUND)
def test_it_is_documented_as_not_found(name: str, what: str) -> None:
    assert scan(NOT_FOUND[name](WHAT[what][0].encode())) is None


DOCUMENT = (ROOT / "docs" / "use" / "egress.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("heading", "names"),
    [("Containers", CONTAINERS), ("Encodings", ENCODINGS), ("Not found", NOT_FOUND)],
)
def test_the_document_lists_exactly_these(heading: str, names: dict[str, Packing]) -> None:
    row = next(line for line in DOCUMENT.splitlines() if line.startswith(f"| **{heading}** |"))
    assert [entry.strip() for entry in row.split("|")[2].split(";")] == [
        name.replace("|", "") for name in names
    ]


# --- heads


SPLIT = len(SECRET) // 2


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize(
    ("fields", "found"),
    [
        (lambda text: [("X-A", text[:SPLIT]), ("X-B", text[SPLIT:])], True),
        (lambda text: [("X-A", text[:5]), ("X-B", text[5:12]), ("X-C", text[12:])], True),
        (lambda text: [("X-A", base64.b64encode(base64.b64encode(text.encode())).decode())], True),
        (lambda text: [("X-A", text.encode().hex(":"))], True),
        (lambda text: [("X-A", text[SPLIT:]), ("X-B", text[:SPLIT])], False),
        (lambda text: [("X-A", text[:SPLIT]), ("X-B", "between"), ("X-C", text[SPLIT:])], False),
    ],
)
def test_headers_are_searched_one_by_one_and_together(
    fields: Callable[[str], list[tuple[str, str]]], found: bool, what: str
) -> None:
    text, kind = WHAT[what]
    headers = [(name.encode(), value.encode()) for name, value in fields(text)]
    scanner = Scanner([SECRET])
    expected = Finding(kind, "header") if found else None
    assert scanner.find_in_head("a.com", b"/", headers) == expected
    assert scanner.find_in_trailers(headers) == (Finding(kind, "trailer") if found else None)


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("name", ["base64 twice", "base32", "hex with colons", "some \\x escapes"])
def test_a_url_is_searched_as_a_body_is(name: str, what: str) -> None:
    text, kind = WHAT[what]
    coded = b"/x?q=" + ENCODINGS[name](text.encode())
    assert Scanner([SECRET]).find_in_url("a.com", coded) == Finding(kind, "url")
