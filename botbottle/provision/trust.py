"""A bottle's trusted certificates: its own CA, and the host's public roots for tunnelled connections.

Trust boundary: certificates only; the CA's key is not read here and never enters a bottle.
"""

from __future__ import annotations

import hashlib
import os
import re
import ssl
import warnings
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from botbottle.provision.variables import TRUSTSTORE_PASSWORD

DIRECTORY = "ca"
FORMAT = b"1"
_PLACES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Alpine, Arch
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  # Fedora, RHEL
    "/etc/ssl/ca-bundle.pem",  # SUSE
    "/etc/ssl/cert.pem",  # BSD, macOS
)
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_ALONE = (
    b"# No public roots on this host: only inspected routes can be verified. Install ca-certificates there.\n"
)


def write(directory: Path, ca_pem: bytes) -> None:
    """Make `ca/{ca.pem,bundle.pem,truststore.p12}` in the bottle's directory, if something changed.

    Raises OSError, and ValueError when `ca_pem` is not a certificate.
    """
    source = roots_file()
    roots = _certificates(source.read_bytes()) if source else []
    inputs = hashlib.sha256(b"\0".join([FORMAT, ca_pem, *roots])).hexdigest() + f"\n{source or ''}\n"
    target = directory / DIRECTORY
    names = ("ca.pem", "bundle.pem", "truststore.p12")
    if _same(target / ".inputs", inputs) and all((target / name).is_file() for name in names):
        return
    store = _truststore(_read(ca_pem), roots)
    target.mkdir(exist_ok=True)
    target.chmod(0o755)
    bundle = b"\n".join([*roots, ca_pem.strip(), b""])
    _replace(target / "ca.pem", ca_pem)
    _replace(target / "bundle.pem", bundle if roots else _ALONE + bundle)
    _replace(target / "truststore.p12", store)
    _replace(target / ".inputs", inputs.encode())  # last: an interrupted write is repeated


def roots_file() -> Path | None:
    """The host's public roots in one file: OpenSSL's default, else a usual place."""
    found = [ssl.get_default_verify_paths().cafile, *_PLACES]
    certifi = find_spec("certifi")
    if certifi and certifi.origin:
        found.append(str(Path(certifi.origin).with_name("cacert.pem")))
    for name in found:
        if name and os.access(name, os.R_OK) and Path(name).is_file():
            return Path(name)
    return None


def _certificates(pem: bytes) -> list[bytes]:
    return _CERTIFICATE.findall(pem)


def _truststore(own: x509.Certificate, roots: list[bytes]) -> bytes:
    """A truststore for Java, which reads no PEM. Its password is public: one stretching round is enough."""
    entries = [pkcs12.PKCS12Certificate(own, b"bot-bottle")]
    for index, pem in enumerate(roots):
        with suppress(ValueError):  # one unreadable root is skipped, not all of them
            entries.append(pkcs12.PKCS12Certificate(_read(pem), b"root-%d" % index))
    encryption = (
        serialization.PrivateFormat.PKCS12.encryption_builder()
        .kdf_rounds(1)
        .hmac_hash(hashes.SHA256())
        .build(TRUSTSTORE_PASSWORD.encode())
    )
    return pkcs12.serialize_java_truststore(entries, encryption)


def _read(pem: bytes) -> x509.Certificate:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old roots violate rules that do not matter here
        return x509.load_pem_x509_certificate(pem)


def _same(path: Path, text: str) -> bool:
    try:
        return path.read_text(encoding="utf-8") == text
    except (OSError, UnicodeDecodeError):
        return False


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.chmod(0o644)  # read by the bottle's user, whatever its id
    temporary.replace(path)
