"""One end of TLS in memory, with a plain `ssl` peer: what it speaks, what it refuses, how much it keeps."""

from __future__ import annotations

import hashlib
import resource
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography import x509

from egress.proxy.tls.authority import _MOST_SESSIONS, Authority, ignore_unreadable_names
from egress.proxy.tls.session import Session, WrongName, upstream_context
from tests.support.tls_peers import HOST, MUCH, greet_with, offer, serving

Peer = Callable[[ssl.SSLContext], None]


class Ends:
    """Ours and Python's, with nothing between them."""

    def __init__(self, ours: Session, theirs: ssl.SSLContext, name: str | None = HOST) -> None:
        self.ours = ours
        self._here, self._there = ssl.MemoryBIO(), ssl.MemoryBIO()
        server_side = ours.is_client
        self.theirs = theirs.wrap_bio(
            self._here, self._there, server_side=server_side, server_hostname=None if server_side else name
        )

    def shake_hands(self) -> None:
        """Raises what our end does; theirs is told then."""
        done = False
        for _ in range(4):
            if self.ours.is_client:
                done = self.ours.shake_hands() or done
            self._here.write(self.ours.pending_output())
            with suppress(ssl.SSLWantReadError):
                self.theirs.do_handshake()
            for record in _records(self._there.read()):
                self.ours.feed(record)
                try:
                    done = self.ours.shake_hands() or done
                finally:
                    self._here.write(self.ours.pending_output())
        assert done

    def sends(self, *messages: bytes) -> bytes:
        """What we read of it."""
        for message in messages:
            self.theirs.write(message)
        return b"".join(self.read(record) for record in _records(self._there.read()))

    def read(self, record: memoryview) -> bytes:
        self.ours.feed(record)
        room = memoryview(bytearray(16_384))
        return bytes(room[: self.ours.decrypt(room)])

    def receives(self, sealed: bytes, most: int = 1 << 20) -> bytes:
        self._here.write(sealed)
        found = b""
        with suppress(ssl.SSLWantReadError):
            while len(found) < most:
                found += self.theirs.read(65_536)
        return found


def _records(data: bytes) -> Iterator[memoryview]:
    while data:
        end = 5 + int.from_bytes(data[3:5])
        yield memoryview(data)[:end]
        data = data[end:]


def _no_older_than(version: ssl.TLSVersion) -> Peer:
    return lambda context: setattr(context, "minimum_version", version)


def _only(version: ssl.TLSVersion) -> Peer:
    def set_both(context: ssl.SSLContext) -> None:
        context.minimum_version = context.maximum_version = version

    return set_both


def _ciphers(names: str) -> Peer:
    def choose(context: ssl.SSLContext) -> None:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(names)

    return choose


SPOKEN = {"1.2": _only(ssl.TLSVersion.TLSv1_2), "1.3": _no_older_than(ssl.TLSVersion.TLSv1_3)}
REFUSED = {
    "no forward secrecy": _ciphers("AES128-GCM-SHA256:AES256-GCM-SHA384"),
    "SHA-1": _ciphers("ECDHE-ECDSA-AES128-SHA:ECDHE-RSA-AES128-SHA"),
}


@pytest.mark.parametrize("size", [1, 5_000, 16_384, 200_000])
@pytest.mark.parametrize("version", SPOKEN)
def test_both_ends_are_spoken(
    authority: Authority, trust: ssl.SSLContext, trusting: ssl.SSLContext, version: str, size: int
) -> None:
    server = serving(authority)
    for context in (trusting, server):
        SPOKEN[version](context)
    for ends in (Ends(authority.session_for(HOST), trusting), Ends(Session(trust, HOST), server)):
        ends.shake_hands()
        assert ends.theirs.version() == f"TLSv{version}"
        assert ends.receives(ends.ours.encrypt(MUCH[:size])) == MUCH[:size]
        assert ends.receives(ends.ours.encrypt(memoryview(MUCH)[:size])) == MUCH[:size]
        assert ends.sends(MUCH[:size], b"more") == MUCH[:size] + b"more"


@pytest.mark.parametrize("weakness", REFUSED)
def test_what_is_weak_is_not_spoken(authority: Authority, trusting: ssl.SSLContext, weakness: str) -> None:
    REFUSED[weakness](trusting)
    with pytest.raises(OSError):
        Ends(authority.session_for(HOST), trusting).shake_hands()


@pytest.mark.parametrize("name", ["other.example.com", None])
def test_a_client_that_greets_for_another_is_told_apart(
    authority: Authority, trusting: ssl.SSLContext, name: str | None
) -> None:
    trusting.check_hostname = False
    with pytest.raises(WrongName):
        Ends(authority.session_for(HOST), trusting, name).shake_hands()
    assert len(authority) == 0


@pytest.mark.parametrize("name", [HOST, "other.example.com"])
def test_a_client_that_has_to_greet_again_is_looked_at_again(
    authority: Authority, trusting: ssl.SSLContext, name: str
) -> None:
    trusting.check_hostname = False
    authority._entrance.set_ecdh_curve("prime256v1")
    ends = Ends(authority.session_for(HOST), trusting)
    offer(ends.theirs, "X25519:P-256")
    with pytest.raises(ssl.SSLWantReadError):
        ends.theirs.do_handshake()
    for record in _records(ends._there.read()):
        ends.ours.feed(record)
        assert ends.ours.shake_hands() is False
    greet_with(ends.theirs, name)
    if name == HOST:
        ends.shake_hands()
        assert ends.sends(b"after all") == b"after all"
    else:
        with pytest.raises(WrongName):
            ends.shake_hands()


def test_a_name_that_is_not_ascii_is_refused_without_a_word(
    authority: Authority, trusting: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python would report each one on stderr."""
    reported: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    for ignored in (False, True):
        if ignored:
            ignore_unreadable_names()
        ends = Ends(authority.session_for(HOST), trusting)
        greet_with(ends.theirs, "f\u00fcr.example.com")
        with pytest.raises(OSError):
            ends.shake_hands()
        assert len(reported) == 1
    assert len(authority) == 0


@pytest.mark.parametrize("host", ["", ".", ".example.com", "a" * 300 + ".example.com"])
def test_what_is_no_name_of_a_server_is_not_taken_for_any(trust: ssl.SSLContext, host: str) -> None:
    with pytest.raises(ValueError):
        Session(trust, host)


def test_authorities_are_found_in_each_of_several_directories(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "missing.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", f"{empty}:{_hashed(tmp_path)}")
    ends = Ends(Session(upstream_context(), HOST), serving(authority))
    ends.shake_hands()
    assert ends.sends(b"trusted") == b"trusted"


@pytest.mark.parametrize("directories", ["", ":", "/nowhere", "/nowhere:"])
def test_without_a_directory_of_authorities_no_server_is_trusted(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, directories: str
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "missing.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", directories)
    with pytest.raises(ssl.SSLCertVerificationError):
        Ends(Session(upstream_context(), HOST), serving(authority)).shake_hands()


def test_a_file_of_the_system_that_holds_none_is_told_and_the_rest_is_taken(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "none.pem").write_text("nobody")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(_hashed(tmp_path)))
    Ends(Session(upstream_context(), HOST), serving(authority)).shake_hands()
    assert f"can be read from {tmp_path / 'none.pem'}" in caplog.text


def _hashed(tmp_path: Path) -> Path:
    """A directory of authorities, as OpenSSL looks for them: by the names of their hashes."""
    directory = tmp_path / "hashed"
    directory.mkdir()
    certificate = x509.load_pem_x509_certificate((tmp_path / "ca.pem").read_bytes())
    (directory / f"{_subject_hash(certificate.subject):08x}.0").write_bytes(
        (tmp_path / "ca.pem").read_bytes()
    )
    return directory


def _subject_hash(name: x509.Name) -> int:
    """Of a name in lower case: OpenSSL hashes the parts without the header of the whole."""
    return int.from_bytes(hashlib.sha1(name.public_bytes()[2:]).digest()[:4], "little")


def test_a_client_that_trusts_nobody_leaves_no_trace(authority: Authority) -> None:
    with pytest.raises(OSError):
        Ends(authority.session_for(HOST), ssl.create_default_context()).shake_hands()


def test_a_server_that_is_not_trusted_leaves_no_trace(authority: Authority) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        Ends(Session(upstream_context(), HOST), serving(authority)).shake_hands()


def test_a_file_of_no_authorities_is_not_taken_for_one(tmp_path: Path) -> None:
    (tmp_path / "none.pem").write_text("nobody")
    with pytest.raises(OSError):
        upstream_context(tmp_path / "none.pem")


def test_a_record_that_was_changed_is_not_read(authority: Authority, trusting: ssl.SSLContext) -> None:
    ends = Ends(authority.session_for(HOST), trusting)
    ends.shake_hands()
    ends.theirs.write(b"transfer 1")
    sealed = bytearray(ends._there.read())
    sealed[-1] ^= 1
    with pytest.raises(OSError):
        ends.read(memoryview(sealed))
    with pytest.raises(OSError):  # nor anything after it
        ends.sends(b"transfer 2")


def test_what_is_sent_after_the_end_is_an_error(authority: Authority, trusting: ssl.SSLContext) -> None:
    ends = Ends(authority.session_for(HOST), trusting)
    ends.shake_hands()
    ends.ours.say_goodbye()
    with pytest.raises(OSError):
        ends.ours.encrypt(b"too late")


def test_a_client_of_tls_1_2_cannot_make_us_keep_sessions(
    authority: Authority, trusting: ssl.SSLContext
) -> None:
    trusting.maximum_version = ssl.TLSVersion.TLSv1_2
    for _ in range(_MOST_SESSIONS + 50):
        ends = Ends(authority.session_for(HOST), trusting)
        ends.shake_hands()
    assert 0 < authority._entrance.session_stats()["number"] <= 51


def test_many_messages_large_and_small_take_no_more_memory(
    authority: Authority, trusting: ssl.SSLContext
) -> None:
    ends = Ends(authority.session_for(HOST), trusting)
    ends.shake_hands()
    large, small = MUCH[:100_000], b"small"

    def exchange(times: int) -> int:
        for _ in range(times):
            assert ends.sends(large) == large
            assert ends.sends(small) == small
            assert ends.receives(ends.ours.encrypt(large)) == large
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    before = exchange(50)
    assert exchange(1000) - before < 20_000  # KiB; kept, it would be 100,000
