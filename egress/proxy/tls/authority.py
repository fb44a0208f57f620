"""A bottle's own certificate authority, and the leaves it signs so that narrowed routes can be inspected.

Trust boundary: the CA's key stays in the bottle's directory on the host (0600) and never enters the bottle.
"""

from __future__ import annotations

import logging
import os
import ssl
import sys
import tempfile
from collections import OrderedDict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from weakref import WeakKeyDictionary

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from botbottle.core.files import write_atomically
from egress.proxy.tls.session import Session, server_context

log = logging.getLogger(__name__)
CERTIFICATE, KEY = "ca.pem", "ca-key.pem"
_CA_LIFE = timedelta(days=3650)
_LEAF_LIFE = timedelta(days=30)
_LEAF_REUSED_FOR = timedelta(days=1)
_CLOCK_SKEW = timedelta(hours=24)
_MOST_SESSIONS = 256  # in OpenSSL's cache, which Python cannot switch off: TLS 1.2 leaves them there


def ensure(directory: Path, slug: str) -> x509.Certificate:
    """The bottle's CA certificate, made on first use. If processes start together, the first one wins.

    Key and certificate are in one file, so that they always belong together.
    """
    both = directory / KEY
    if not both.exists():
        _create(both, slug)
    certificate = x509.load_pem_x509_certificate(both.read_bytes())
    public = directory / CERTIFICATE
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    if not public.exists() or public.read_bytes() != pem:
        write_atomically(public, pem.decode("ascii"), mode=0o644)
    return certificate


class Authority:
    """Signs leaves for one bottle and keeps a bounded number of TLS contexts, the most recently used ones."""

    def __init__(self, directory: Path, slug: str, *, keep: int = 512) -> None:
        self._slug = slug
        self._certificate = ensure(directory, slug)
        key = serialization.load_pem_private_key((directory / KEY).read_bytes(), password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{directory / KEY} does not hold a P-256 key. Remove it to make a new one.")
        self._key = key
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._contexts: OrderedDict[str, tuple[ssl.SSLContext, datetime]] = OrderedDict()
        self._keep = keep
        self._entrance = self._new_entrance()
        self._hosts: WeakKeyDictionary[ssl.SSLObject | ssl.SSLSocket, str] = WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self._contexts)

    def session_for(self, host: str) -> Session:
        """The server's end for clients that send `host` as the server name: any other, or none, is refused.

        A leaf is signed when a client sends that name, not before: naming hosts costs us little.
        """
        if self._entrance.session_stats()["number"] > _MOST_SESSIONS:
            self._entrance = self._new_entrance()
        session = Session(self._entrance)
        self._hosts[session.tls] = host
        return session

    def _new_entrance(self) -> ssl.SSLContext:
        """A context without a certificate: a handshake succeeds only if it changes to one that has one."""
        context = server_context()
        context.sni_callback = self._select_context
        return context

    def _select_context(
        self, tls: ssl.SSLObject | ssl.SSLSocket, name: str | None, _: ssl.SSLContext
    ) -> int | None:
        """Called for the client's hello, and for its second if we asked for one."""
        host = self._hosts[tls]
        if name is None or name.lower() != host:
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        try:
            tls.context = self._kept(host) or self._signed_context(host)
        except (OSError, ValueError) as error:
            log.error("bottle %s: no certificate can be made: %s", self._slug, error)
        return None

    def _kept(self, host: str) -> ssl.SSLContext | None:
        kept = self._contexts.get(host)
        if kept is None or datetime.now(UTC) - kept[1] > _LEAF_REUSED_FOR:
            return None
        self._contexts.move_to_end(host)
        return kept[0]

    def _signed_context(self, host: str) -> ssl.SSLContext:
        context, now = server_context(), datetime.now(UTC)
        leaf = self._leaf(host, now).public_bytes(serialization.Encoding.PEM)
        _load_chain(context, leaf + _private_pem(self._leaf_key))
        self._contexts[host] = (context, now)
        self._contexts.move_to_end(host)
        while len(self._contexts) > self._keep:
            self._contexts.popitem(last=False)
        return context

    def _leaf(self, host: str, now: datetime) -> x509.Certificate:
        key = self._leaf_key.public_key()
        issuer_key = self._certificate.public_key()
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])]))
            .issuer_name(self._certificate.subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _CLOCK_SKEW)
            .not_valid_after(now + _LEAF_LIFE)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key),  # type: ignore[arg-type]
                critical=False,
            )
        )
        return builder.sign(self._key, hashes.SHA256())


def ignore_unreadable_names() -> None:
    """Do not let Python report server names that are not ASCII on stderr: a bottle could fill the disk.

    It reports them before `sni_callback` is called, and ends the handshake.
    """
    report = sys.unraisablehook

    def report_others(problem: sys.UnraisableHookArgs) -> None:
        if not isinstance(problem.exc_value, UnicodeDecodeError):
            report(problem)

    sys.unraisablehook = report_others


def _create(path: Path, slug: str) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"bot-bottle {slug}"[:64])])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM) + _private_pem(key)
    _write_once(path, pem)


def _write_once(path: Path, content: bytes) -> None:
    """Write a private file, complete or not at all, and never replace one."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    except FileExistsError:
        pass  # another process was first, and its CA counts
    finally:
        Path(temporary).unlink(missing_ok=True)


def _usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _load_chain(context: ssl.SSLContext, pem: bytes) -> None:
    """Use a certificate and key that exist in memory only: Python's `ssl` reads them from files."""
    descriptor = os.memfd_create("leaf", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
