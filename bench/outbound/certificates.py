"""Throw-away authorities for a benchmark, and one bundle of all that the load trusts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class TestCa:
    """`path` is the certificate, `pem` the certificate with its key, `bundle` all that was trusted so far."""

    __test__ = False

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"benchmark {name}")])
        self.path, self.pem = folder / f"{name}-ca.pem", folder / f"{name}-ca-and-key.pem"
        self.bundle = folder / f"{name}-bundle.pem"
        usage = x509.KeyUsage(
            digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
            key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
            decipher_only=False,
        )  # fmt: skip
        builder = self._builder(self._name, self._key).add_extension(usage, critical=True)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        certificate = _pem(builder.sign(self._key, hashes.SHA256()))
        self.path.write_bytes(certificate)
        self.pem.write_bytes(_private(self._key) + certificate)
        self.bundle.write_bytes(certificate)

    def leaf(self, host: str, *others: str) -> Path:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        names = x509.SubjectAlternativeName([x509.DNSName(name) for name in (host, *others)])
        builder = self._builder(subject, key).add_extension(names, critical=False)
        path = self._folder / f"{host}.pem"
        path.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())) + _private(key))
        return path

    def trust(self, path: Path) -> None:
        self.bundle.write_bytes(self.bundle.read_bytes() + path.read_bytes())

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name)
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=7))
        return builder.add_extension(
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
        ).add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
        )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
