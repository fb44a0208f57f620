"""Every way in which a bottle's table can be no good: for the benchmark of reloads, and for its test."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path


class Files:
    """What is in the bottle's directory, made unfit in some way. `another` is that of another bottle."""

    def __init__(self, directory: Path, another: Path) -> None:
        self._gate, self._routes = directory / "gate.yaml", directory / "routes.yaml"
        self._another = another
        self._first = self._both()

    def _both(self) -> tuple[str, str]:
        return self._gate.read_text(), self._routes.read_text()

    def _write(self, gate: str, routes: str) -> None:
        self._gate.write_text(gate)
        self._routes.write_text(routes)

    def cut_routes(self) -> None:
        self._routes.write_text(_half(self._routes.read_text()))

    def cut_gate(self) -> None:
        self._gate.write_text(_half(self._gate.read_text()))

    def empty(self) -> None:
        self._write("", "")

    def lose_one(self) -> None:
        self._gate.unlink()

    def garble(self) -> None:
        self._routes.write_bytes(self._routes.read_bytes().replace(b"example", b"\xff\xfe"))

    def edit(self) -> None:
        """Somebody allows a little more by hand."""
        self._routes.write_text(self._routes.read_text().replace("/allowed", "/"))

    def misdigest(self) -> None:
        self._gate.write_text(re.sub(r"digest: \S+", f"digest: {'0' * 64}", self._gate.read_text()))

    def take_anothers(self) -> None:
        others = [(self._another / f"{name}.yaml").read_text() for name in ("gate", "routes")]
        self._write(*others)

    def go_back(self) -> None:
        self._write(*self._first)

    def mix_versions(self) -> None:
        self._gate.write_text(self._first[0])


def _half(text: str) -> str:
    return text[: len(text) // 2]


# Each with what the data plane says of it.
DAMAGES: list[tuple[Callable[[Files], None], str]] = [
    (Files.cut_routes, "routes.yaml"),
    (Files.cut_gate, "gate.yaml"),
    (Files.empty, "empty"),
    (Files.lose_one, "gate.yaml is missing"),
    (Files.garble, "not UTF-8"),
    (Files.edit, "does not match its digest"),
    (Files.misdigest, "does not match its digest"),
    (Files.take_anothers, "belongs to another bottle"),
    (Files.go_back, "older than the live one"),
    (Files.mix_versions, "differ in table_version"),
]
