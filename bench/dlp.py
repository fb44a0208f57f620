"""What searching for secrets costs: per MB of body, per request head, per start. `python bench/dlp.py`."""

from __future__ import annotations

import base64
import gzip
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from egress.dlp.redaction import Scrubber
from egress.dlp.scanner import BodyScan, Scanner, Steps, shapes

MB = 1024 * 1024
PIECE = 64 * 1024
SECRETS = [f"secret-{number}-{os.urandom(12).hex()}" for number in range(3)]


def best(work: Callable[[], object], rounds: int = 5) -> float:
    times = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def done(steps: Steps) -> None:
    for _ in steps:
        pass


def search(scanner: Scanner, body: bytes, codings: Sequence[str] = ()) -> None:
    scan = BodyScan(scanner, codings=codings)
    through(lambda piece, *, last: done(scan.steps(piece, last=last)), body)


def scrub(scanner: Scanner, body: bytes) -> None:
    scrubber = Scrubber(scanner.literals)
    through(lambda piece, *, last: done(scrubber.steps(piece, last=last)), body)


def through(feed: Callable[..., object], body: bytes) -> None:
    for start in range(0, len(body), PIECE):
        feed(body[start : start + PIECE], last=start + PIECE >= len(body))


def bodies() -> dict[str, bytes]:
    source = b"".join(path.read_bytes() for path in sorted(Path(__file__).parents[1].glob("egress/**/*.py")))
    rows = [{"id": number, "name": f"user {number}", "at": number * 7919} for number in range(60_000)]
    return {
        "random bytes": os.urandom(2 * MB),
        "base64": base64.b64encode(os.urandom(2 * MB)),
        "JSON": json.dumps(rows).encode(),
        "source code": source * (2 * MB // len(source) + 1),
    }


def per_head(scanner: Scanner, target: bytes, fields: list[tuple[bytes, bytes]]) -> float:
    """In microseconds."""
    find = scanner.find_in_head
    return best(lambda: [find("api.example.com", target, fields) for _ in range(5000)]) / 5000 * 1e6


def main() -> None:
    start = time.process_time()
    shapes()
    print(f"compiling the token shapes once: {(time.process_time() - start) * 1000:.0f} ms")
    scanner = Scanner(SECRETS)
    print(f"compiling a bottle's {len(SECRETS)} secrets: {best(lambda: Scanner(SECRETS)) * 1000:.1f} ms")
    print("\n| body | leaving, ms/MB | leaving, gzip, ms/MB | coming back, ms/MB |\n|---|---|---|---|")
    for name, body in bodies().items():
        packed = gzip.compress(body, 1)
        size = len(body) / MB
        plain = best(lambda body=body: search(scanner, body)) * 1000 / size
        coded = best(lambda packed=packed: search(scanner, packed, ["gzip"])) * 1000 / size
        back = best(lambda body=body: scrub(scanner, body)) * 1000 / size
        print(f"| {name} | {plain:.1f} | {coded:.1f} | {back:.1f} |")
    usual = {"Host": "api.example.com", "User-Agent": "python-httpx/0.28.1", "Accept": "*/*"}
    usual |= {"Accept-Encoding": "gzip, deflate, br", "X-Request-Id": "0d9f6a2e-7f5d-4a1e-9c3b-7e1f2a3b4c5d"}
    heads = {
        "5 headers": ("/v1/things", usual),
        "5 headers, escapes in the URL": ("/v1/things?q=a%20b", usual),
        "6 headers, 1 KB": ("/v1/things", {**usual, "Cookie": "a=1; " * 160}),
    }
    print("\n| head | µs |\n|---|---|")
    for name, (target, headers) in heads.items():
        fields = [(key.encode(), value.encode()) for key, value in headers.items()]
        print(f"| {name} | {per_head(scanner, target.encode(), fields):.1f} |")
    cost = best(lambda: [search(scanner, b'{"a": 1}' * 128) for _ in range(5000)])
    print(f"| body of 1 KB | {cost / 5000 * 1e6:.1f} |")


if __name__ == "__main__":
    main()
