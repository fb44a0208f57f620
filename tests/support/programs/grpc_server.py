"""A gRPC service without generated code: `Echo` answers once, `Count` streams."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc


def echo(request: bytes, _: grpc.ServicerContext) -> bytes:
    return request[::-1]


def count(request: bytes, _: grpc.ServicerContext) -> Iterator[bytes]:
    for number in range(int(request)):
        yield str(number).encode()


def main(address: str, pem: str) -> None:
    both = Path(pem).read_bytes()
    server = grpc.server(ThreadPoolExecutor(4))
    methods = {
        "Echo": grpc.unary_unary_rpc_method_handler(echo),
        "Count": grpc.unary_stream_rpc_method_handler(count),
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("lab.Lab", methods)])
    server.add_secure_port(address, grpc.ssl_server_credentials([(both, both)]))
    server.start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    server.stop(0).wait()


signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
main(*sys.argv[1:])
