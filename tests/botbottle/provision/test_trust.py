"""The trust files: real TLS and real Java believe the bottle's CA and the public roots, and nothing else."""

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import pkcs12

from botbottle.provision import trust
from botbottle.provision.variables import TRUSTSTORE_PASSWORD
from egress.proxy.tls import authority
from tests.support.requirements import require

NAMES = ("ca.pem", "bundle.pem", "truststore.p12")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    authority.ensure(tmp_path, "demo")
    return tmp_path


@pytest.fixture
def roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two public roots of a host, among things that are none."""
    path = tmp_path / "roots.pem"
    pems = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        authority.ensure(tmp_path / name, name)
        pems.append((tmp_path / name / "ca.pem").read_text())
    path.write_text("# comment\n" + pems[0] + "junk\n" + pems[1])
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    return path


def write(directory: Path) -> dict[str, bytes]:
    trust.write(directory, (directory / "ca.pem").read_bytes())
    return {name: (directory / "ca" / name).read_bytes() for name in NAMES}


def names(certificates: list[x509.Certificate]) -> set[str]:
    return {certificate.subject.rfc4514_string() for certificate in certificates}


def test_the_bundle_is_the_hosts_roots_and_the_bottles_ca(directory: Path, roots: Path) -> None:
    written = write(directory)
    own = x509.load_pem_x509_certificate((directory / "ca.pem").read_bytes())
    bundle = x509.load_pem_x509_certificates(written["bundle.pem"])
    assert names(bundle) == names([own, *x509.load_pem_x509_certificates(roots.read_bytes())])
    assert len(bundle) == 3
    assert written["ca.pem"] == (directory / "ca.pem").read_bytes()
    assert len(ssl.create_default_context(cadata=written["bundle.pem"].decode()).get_ca_certs()) >= 3


def test_the_store_holds_the_same_and_no_key(directory: Path, roots: Path) -> None:
    written = write(directory)
    store = pkcs12.load_pkcs12(written["truststore.p12"], TRUSTSTORE_PASSWORD.encode())
    assert store.key is None
    found = [entry.certificate for entry in store.additional_certs]
    assert names(found) == names(x509.load_pem_x509_certificates(written["bundle.pem"]))
    assert b"PRIVATE" not in b"".join(written.values())


def test_it_is_readable_by_the_bottles_user(directory: Path, roots: Path) -> None:
    write(directory)
    assert (directory / "ca").stat().st_mode & 0o777 == 0o755
    assert {(directory / "ca" / name).stat().st_mode & 0o777 for name in NAMES} == {0o644}


def test_nothing_is_written_while_nothing_changed(directory: Path, roots: Path) -> None:
    write(directory)
    before = {path: path.stat().st_ino for path in (directory / "ca").iterdir()}
    write(directory)
    assert {path: path.stat().st_ino for path in (directory / "ca").iterdir()} == before


def test_a_new_root_a_new_ca_or_a_missing_file_is_noticed(directory: Path, roots: Path) -> None:
    first = write(directory)
    (directory / "ca" / "truststore.p12").unlink()
    assert write(directory)["bundle.pem"] == first["bundle.pem"]
    roots.write_text((directory / "one" / "ca.pem").read_text())
    second = write(directory)
    assert len(x509.load_pem_x509_certificates(second["bundle.pem"])) == 2
    (directory / "ca-key.pem").unlink()
    authority.ensure(directory, "demo")
    third = write(directory)
    assert third["ca.pem"] != second["ca.pem"]
    assert third["ca.pem"].strip() in third["bundle.pem"]


def test_one_odd_root_does_not_cost_the_others(directory: Path, roots: Path) -> None:
    odd = "-----BEGIN CERTIFICATE-----\nbm90IG9uZQ==\n-----END CERTIFICATE-----\n"
    roots.write_text(odd + roots.read_text())
    store = pkcs12.load_pkcs12(write(directory)["truststore.p12"], TRUSTSTORE_PASSWORD.encode())
    assert len(store.additional_certs) == 3


def test_a_host_without_roots_leaves_the_bottles_ca_and_says_so(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "roots_file", lambda: None)
    bundle = write(directory)["bundle.pem"]
    assert bundle.startswith(b"# No public roots on this host")
    assert len(x509.load_pem_x509_certificates(bundle)) == 1


def test_something_that_is_no_certificate_is_refused_and_nothing_written(directory: Path) -> None:
    with pytest.raises(ValueError):
        trust.write(directory, b"not a certificate")
    assert not (directory / "ca").exists()


def test_this_host_has_roots_that_openssl_would_use() -> None:
    found = trust.roots_file()
    require(found, "the host's public roots", "apt-get install ca-certificates")
    assert found.read_bytes().count(b"BEGIN CERTIFICATE") > 50


@pytest.mark.tools
def test_java_reads_the_store(directory: Path, roots: Path) -> None:
    keytool = shutil.which("keytool")
    require(keytool, "Java's keytool", "apt-get install default-jre-headless")
    write(directory)
    store = directory / "ca" / "truststore.p12"
    listed = subprocess.run(
        [keytool, "-list", "-keystore", store, "-storepass", TRUSTSTORE_PASSWORD],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert listed.stdout.count("trustedCertEntry") == 3
