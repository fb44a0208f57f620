"""House rules that a machine can hold: imports point one way, statuses have one writer, no escape hatches."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support import ROOT

PACKAGES = ("botbottle", "egress", "supervise")
PURE = {
    "egress.addresses", "egress.ask", "egress.effects", "egress.errors", "egress.hostnames", "egress.merge",
    "egress.paths", "egress.policy", "egress.routes", "egress.snapshot", "egress.decoding", "egress.dlp",
    "egress.scrubbing", "egress.secret_forms", "egress.token_shapes", "egress.websocket_frames",
    "egress.handed", "egress.lookalikes", "egress.pipelock", "egress.secret_files", "egress.shards",
    "egress.sigv4_scope", "egress.containers", "egress.encodings", "egress.expressions", "egress.findings",
    "egress.git_objects", "egress.git_packs", "egress.git_push",
    "supervise.canonical", "supervise.risk", "supervise.sanitize", "supervise.diffs",
    "supervise.mcp.jsonrpc", "supervise.mcp.versions", "supervise.mcp.protocol", "supervise.mcp.edge",
    "supervise.mcp.catalog", "supervise.dockerfile_review", "supervise.story", "supervise.context_text",
    "botbottle.dockerfiles", "botbottle.environment", "botbottle.manifest", "botbottle.manifest_yaml",
    "botbottle.plan", "botbottle.sharing", "botbottle.launch", "botbottle.provision.agents",
    "botbottle.provision.variables",
    "botbottle.provision.trust", "botbottle.provision.context_hooks", "botbottle.backends.base",
    "botbottle.backends.seccomp", "botbottle.rebuildable",
}  # fmt: skip
NOT_PURE = {"admin", "apps", "data_plane", "intake", "models", "secrets", "store"}
EDGES = re.compile(r"supervise\.(admin|console|api|mcp|consumers|management|cli)\b")
CORE = {
    "supervise.models", "supervise.decisions", "supervise.queries", "supervise.filing", "supervise.applying",
    "supervise.audit", "supervise.events", "supervise.outcomes", "supervise.reviewing", "supervise.waiting",
    "supervise.caretaker", "supervise.bottles", "supervise.secrets",
}  # fmt: skip


def sources() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if "migrations" not in path.parts:
                yield ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"), path


@functools.cache
def imports(module: str, path: Path) -> frozenset[str]:
    found: set[str] = set()
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parent, *([node.module] if node.module else [])])
            found |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return frozenset(found)


ALL = dict(sources())


def roots(module: str) -> set[str]:
    """The outermost packages that the module imports from."""
    return {name.split(".")[0] for name in imports(module, ALL[module])}


def test_pure_modules_import_no_django_and_no_sockets() -> None:
    impure = {"django", "channels", "rest_framework", "socket", "asyncio", "httptools"}
    assert [module for module in sorted(PURE) if roots(module) & impure] == []


def test_every_module_of_egress_is_pure_or_speaks_to_the_database_or_the_proxy() -> None:
    modules = {name for name in ALL if name.count(".") == 1 and name.startswith("egress.")} - {"egress.proxy"}
    assert modules - PURE == {f"egress.{name}" for name in NOT_PURE}


def test_the_map_names_every_module_of_egress() -> None:
    lines = (ROOT / "CONTRIBUTING.md").read_text().splitlines()
    room = next(line for line in lines if line.startswith("| `egress/` |"))
    named = {word for words in re.findall(r"`([a-z_0-9 ]+)`", room) for word in words.split()}
    pure = {name.removeprefix("egress.") for name in PURE if name.startswith("egress.")}
    assert named == pure | NOT_PURE - {"admin", "apps"}, "those two are Django's usual ones"


def reached_from(*starts: str) -> set[str]:
    """The modules of ours that are loaded with them."""
    seen: set[str] = set()
    todo = set(starts)
    while todo:
        name = todo.pop()
        seen.add(name)
        todo |= {found for found in imports(name, ALL[name]) if found in ALL} - seen
    return seen


def test_the_proxy_and_the_supervisor_need_no_django() -> None:
    """Not even through what they import: one runs where there is no database, the other is to stay small."""
    web = {"django", "channels", "rest_framework", "twisted", "daphne"}
    proxy = [name for name in ALL if name.startswith("egress.proxy")]
    for starts in (proxy, ["botbottle.supervisor"]):
        assert [module for module in sorted(reached_from(*starts)) if roots(module) & web] == []


def test_backends_need_no_django() -> None:
    """A bottle starts without it; and what runs agents knows nothing of who asks and who decides."""
    unwanted = {"django", "channels", "rest_framework", "supervise"}
    backends = [name for name in ALL if name.startswith("botbottle.backends")]
    assert [module for module in backends if roots(module) & unwanted] == []


def test_egress_never_imports_supervise() -> None:
    assert [name for name in ALL if name.startswith("egress") and "supervise" in roots(name)] == []


def test_the_core_never_imports_an_edge() -> None:
    found = {module: [n for n in imports(module, ALL[module]) if EDGES.match(n)] for module in CORE}
    assert {module: edges for module, edges in found.items() if edges} == {}


def test_only_decisions_writes_a_status() -> None:
    writes = re.compile(r"\.update\([^)]*\bstatus=|\.status = ", re.DOTALL)
    writers = {
        module
        for module, path in ALL.items()
        if not module.startswith("egress.proxy.")  # there a status is HTTP's
        and writes.search(path.read_text())
    }
    assert writers == {"supervise.decisions"}


def test_no_module_opens_an_escape_hatch() -> None:
    hatch = re.compile(r"mark_safe|SafeString|shell=True|verify=False|csrf_exempt|autoescape off")
    assert [module for module, path in ALL.items() if hatch.search(path.read_text())] == []
