"""A small internet on loopback: TLS servers behind a proxy that connects to them by name. Not for real use.

The egress proxy is configured to leave through it, as through an operator's own gate.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from select import select
from socket import create_connection, socket

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_CHUNK = 64 * 1024
_IDLE_SECONDS = 60


class Site(BaseHTTPRequestHandler):
    """A name of this internet; subclasses add do_GET and the like."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def answer(self, status: int, body: bytes, content_type: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@dataclass(frozen=True, slots=True)
class Internet:
    proxy_url: str
    authority: Path


@contextmanager
def small_internet(directory: Path, sites: Mapping[str, type[Site]]) -> Iterator[Internet]:
    """Run it in threads of this process until the block ends."""
    authority = directory / "internet.pem"
    context = _server_context(authority, list(sites))
    origins = {host: _serving(site) for host, site in sites.items()}
    for origin in origins.values():
        origin.socket = context.wrap_socket(origin.socket, server_side=True, do_handshake_on_connect=False)
    addresses = {host: origin.server_address[1] for host, origin in origins.items()}
    proxy = _serving(type("ConnectProxy", (_ConnectProxy,), {"addresses": addresses}))
    servers = (*origins.values(), proxy)
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield Internet(f"http://127.0.0.1:{proxy.server_address[1]}", authority)
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


class _ConnectProxy(Site):
    """A proxy that handles CONNECT by name."""

    addresses: Mapping[str, int]

    def do_CONNECT(self) -> None:
        port = self.addresses.get(self.path.partition(":")[0])
        self.close_connection = True
        if port is None:
            self.answer(502, b"no such host in this internet\n")
            return
        with create_connection(("127.0.0.1", port), timeout=5) as there:
            self.send_response(200)
            self.end_headers()
            _copy(self.connection, there)


def _copy(one: socket, other: socket) -> None:
    """Both ways, until either side ends or nothing comes for a while."""
    towards = {one: other, other: one}
    while ready := select([*towards], [], [], _IDLE_SECONDS)[0]:
        for source in ready:
            data = source.recv(_CHUNK)
            if not data:
                return
            towards[source].sendall(data)


def _serving(handler: type[Site]) -> ThreadingHTTPServer:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    return server


def _server_context(authority: Path, hosts: Sequence[str]) -> ssl.SSLContext:
    """A certificate for all hosts, which is also the CA that the egress proxy is told to trust."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a small internet")])
    now = datetime.now(UTC)
    names = x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    authority.write_bytes(pem)
    both = authority.with_name("internet-key.pem")
    both.touch(mode=0o600)
    both.write_bytes(pem + private)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(both)
    return context
