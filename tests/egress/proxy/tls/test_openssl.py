"""One end of TLS in memory, beside Python's own: what it speaks, refuses, and leaves behind."""

from __future__ import annotations

import resource
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography.hazmat.bindings.openssl.binding import Binding
from hypothesis import given, settings
from hypothesis import strategies as st
from OpenSSL import crypto

from egress.proxy.tls.authority import Authority
from egress.proxy.tls.openssl import ARRIVED, PLAIN, BadCertificate, Session, TlsError, Trust, WrongName
from egress.proxy.tls.transport import whole_records
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
            self._here.write(self.ours.sealed())
            with suppress(ssl.SSLWantReadError):
                self.theirs.do_handshake()
            if greeting := self._there.read():
                self.ours.give(0, _arrives(greeting))
                try:
                    done = self.ours.shake_hands() or done
                finally:
                    self._here.write(self.ours.sealed())
        assert done

    def sends(self, *messages: bytes) -> bytes:
        """What we read of it."""
        for message in messages:
            self.theirs.write(message)
        start, end, size = 0, _arrives(self._there.read()), 0
        while start < end:
            records, stop = whole_records(start, min(start + 65_536, end))
            size = self.ours.open(start, stop, records, size)
            start = stop
        return bytes(PLAIN.view[:size])

    def receives(self, sealed: bytes, most: int = 1 << 20) -> bytes:
        self._here.write(sealed)
        found = b""
        with suppress(ssl.SSLWantReadError):
            while len(found) < most:
                found += self.theirs.read(65_536)
        return found


def _arrives(data: bytes) -> int:
    ARRIVED.view[: len(data)] = data
    return len(data)


@pytest.fixture(autouse=True)
def _nothing_is_left_for_others() -> object:
    """An error that stays in OpenSSL's queue would be taken for one of the next connection."""
    assert Binding.lib.ERR_peek_error() == 0
    yield
    assert Binding.lib.ERR_peek_error() == 0


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
    authority: Authority, trust: Trust, trusting: ssl.SSLContext, version: str, size: int
) -> None:
    server = serving(authority)
    for context in (trusting, server):
        SPOKEN[version](context)
    for ends in (Ends(authority.session_for(HOST), trusting), Ends(trust.session_for(HOST), server)):
        ends.shake_hands()
        assert ends.theirs.version() == f"TLSv{version}"
        assert ends.receives(ends.ours.seal(MUCH[:size])) == MUCH[:size]
        assert ends.receives(ends.ours.seal(memoryview(MUCH)[:size])) == MUCH[:size]
        assert ends.sends(MUCH[:size], b"more") == MUCH[:size] + b"more"


@pytest.mark.parametrize("weakness", REFUSED)
def test_what_is_weak_is_not_spoken(authority: Authority, trusting: ssl.SSLContext, weakness: str) -> None:
    REFUSED[weakness](trusting)
    with pytest.raises((TlsError, ssl.SSLError)):
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
    ends = Ends(authority.session_for(HOST), trusting)
    offer(ends.theirs, "ffdhe8192:P-256")
    with pytest.raises(ssl.SSLWantReadError):
        ends.theirs.do_handshake()
    ends.ours.give(0, _arrives(ends._there.read()))
    assert ends.ours.shake_hands() is False
    greet_with(ends.theirs, name)
    if name == HOST:
        ends.shake_hands()
        assert ends.sends(b"after all") == b"after all"
    else:
        with pytest.raises(WrongName):
            ends.shake_hands()


@pytest.mark.parametrize("host", ["", ".", ".example.com", "a" * 300 + ".example.com"])
def test_what_is_no_name_of_a_server_is_not_taken_for_any(trust: Trust, host: str) -> None:
    with pytest.raises(ValueError):
        trust.session_for(host)


def test_authorities_are_found_in_each_of_several_directories(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "missing.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", f"{empty}:{_hashed(tmp_path)}")
    ends = Ends(Trust().session_for(HOST), serving(authority))
    ends.shake_hands()
    assert ends.sends(b"trusted") == b"trusted"


def test_a_file_of_the_system_that_holds_none_is_told_and_the_rest_is_taken(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "none.pem").write_text("nobody")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(_hashed(tmp_path)))
    Ends(Trust().session_for(HOST), serving(authority)).shake_hands()
    assert f"none can be read from {tmp_path / 'none.pem'}" in caplog.text


def _hashed(tmp_path: Path) -> Path:
    """A directory of authorities, as OpenSSL looks for them: by the names of their hashes."""
    directory = tmp_path / "hashed"
    directory.mkdir()
    pem = (tmp_path / "ca.pem").read_bytes()
    name = crypto.load_certificate(crypto.FILETYPE_PEM, pem).subject_name_hash()
    (directory / f"{name:08x}.0").write_bytes(pem)
    return directory


def test_a_client_that_trusts_nobody_leaves_no_trace(authority: Authority) -> None:
    with pytest.raises((TlsError, ssl.SSLError)):
        Ends(authority.session_for(HOST), ssl.create_default_context()).shake_hands()


def test_a_server_that_is_not_trusted_leaves_no_trace(authority: Authority) -> None:
    with pytest.raises(BadCertificate):
        Ends(Trust().session_for(HOST), serving(authority)).shake_hands()


def test_a_file_of_no_authorities_is_not_taken_for_one(tmp_path: Path) -> None:
    (tmp_path / "none.pem").write_text("nobody")
    with pytest.raises(TlsError):
        Trust(tmp_path / "none.pem")


def test_a_record_that_was_changed_is_not_read(authority: Authority, trusting: ssl.SSLContext) -> None:
    ends = Ends(authority.session_for(HOST), trusting)
    ends.shake_hands()
    ends.theirs.write(b"transfer 1")
    sealed = bytearray(ends._there.read())
    sealed[-1] ^= 1
    with pytest.raises(TlsError):
        ends.ours.open(0, _arrives(bytes(sealed)), 1, 0)
    with pytest.raises(TlsError):  # nor anything after it
        ends.sends(b"transfer 2")


def test_what_is_sent_after_the_end_is_an_error(authority: Authority, trusting: ssl.SSLContext) -> None:
    ends = Ends(authority.session_for(HOST), trusting)
    ends.shake_hands()
    ends.ours.say_goodbye()
    with pytest.raises(TlsError):
        ends.ours.seal(b"too late")


@settings(deadline=None)
@given(
    sizes=st.lists(st.one_of(st.integers(1, 300), st.integers(8_000, 16_384)), min_size=1, max_size=12),
    share=st.floats(0, 1),
)
def test_what_is_passed_on_is_whole_and_so_is_the_rest(
    authority_of_all: Authority, sizes: list[int], share: float
) -> None:
    trusting = ssl.create_default_context(cadata=_certificate(authority_of_all))
    source, target = (Ends(authority_of_all.session_for(HOST), trusting) for _ in range(2))
    for ends in (source, target):
        ends.shake_hands()
    messages = [MUCH[at : at + size] for at, size in enumerate(sizes)]
    sent, count = b"".join(messages), max(1, int(share * sum(sizes)))
    source.ours.pass_on(count, target.ours)
    rest = source.sends(*messages)
    assert target.receives(target.ours.sealed()) == sent[:count]
    assert (rest, source.ours.to_pass) == (sent[count:], 0)
    assert source.sends(b"afterwards") == b"afterwards"


@pytest.fixture(scope="module")
def authority_of_all(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"), "agent-a")


def _certificate(authority: Authority) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return authority._certificate.public_bytes(Encoding.DER)


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
            assert ends.receives(ends.ours.seal(large)) == large
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    before = exchange(50)
    assert exchange(1000) - before < 20_000  # KiB; kept, it would be 100,000
