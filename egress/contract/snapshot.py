"""The two files that the proxy loads: rendering and strict loading.

Trust boundary: a file may be incomplete, old, edited or hostile. It loads entirely or raises BadSnapshot.
"""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from typing import Any

import yaml

from egress.policy.errors import BadSnapshot, PolicyError, quoted
from egress.policy.table import RouteTable, Snapshot

FORMAT = 1
_HEADER = ("version", "bottle", "table_version", "written_at", "digest")
_MAX_FILE = 8 * 1024 * 1024
_MAX_DEPTH = 8

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def render_routes(snapshot: Snapshot) -> str:
    """The text of routes.yaml."""
    return _render(snapshot, "routes", snapshot.table.as_dict()["routes"])


def render_gate(snapshot: Snapshot) -> str:
    """The text of gate.yaml."""
    return _render(snapshot, "hosts", snapshot.table.as_dict()["gate_hosts"])


def load(routes_text: str, gate_text: str) -> Snapshot:
    """The snapshot in the two files. Raises BadSnapshot if any part is missing or wrong."""
    routes = _document(routes_text, "routes")
    gate = _document(gate_text, "hosts")
    for key in ("bottle", "table_version", "written_at"):
        if routes[key] != gate[key]:
            raise BadSnapshot(
                f"routes.yaml and gate.yaml differ in {key}: {quoted(routes[key])}, {quoted(gate[key])}"
            )
    try:
        table = RouteTable.from_dict({"routes": routes["routes"], "gate_hosts": gate["hosts"]})
    except PolicyError as error:
        raise BadSnapshot(f"the snapshot holds a bad table: {error}") from error
    return Snapshot(routes["bottle"], routes["table_version"], table, routes["written_at"])


def _render(snapshot: Snapshot, part: str, content: list[Any]) -> str:
    document: dict[str, Any] = {
        "version": FORMAT,
        "bottle": snapshot.bottle,
        "table_version": snapshot.version,
        "written_at": snapshot.written_at,
    }
    _check_header(document, f"{part} of the snapshot")
    digest = _digest({**document, part: content})
    return as_yaml({**document, "digest": digest, part: content})


def as_yaml(document: dict[str, Any]) -> str:
    """Dump with the C library if there is one: it is many times as fast, and agents wait for it."""
    return str(yaml.dump(document, Dumper=_Dumper, sort_keys=False))


def _digest(document: dict[str, Any]) -> str:
    """A digest of the content, not of the bytes: comments and layout do not matter, any value does."""
    try:
        canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise BadSnapshot("the snapshot holds a value that is not plain data") from error
    return "sha256:" + hashlib.sha256(canonical.encode("ascii")).hexdigest()


def _document(text: str, part: str) -> dict[str, Any]:
    name = "routes.yaml" if part == "routes" else "gate.yaml"
    document = _parse(text, name)
    if not isinstance(document, dict):
        raise BadSnapshot(f"{name} is empty or not a mapping")
    for key in document:
        if key not in (*_HEADER, part):
            raise BadSnapshot(f"{name} has an unknown key {quoted(key)}")
    for key in (*_HEADER, part):
        if key not in document:
            raise BadSnapshot(f"{name} lacks {key}")
    if document["version"] != FORMAT or type(document["version"]) is not int:
        raise BadSnapshot(
            f"{name} has format version {quoted(document['version'])}; this program reads {FORMAT}"
        )
    _check_header(document, name)
    if not isinstance(document[part], list):
        raise BadSnapshot(f"{name}: {part} must be a list")
    if document.pop("digest") != _digest(document):
        raise BadSnapshot(f"{name} does not match its digest: it is torn or was edited")
    return document


def _check_header(document: dict[str, Any], name: str) -> None:
    bottle, version = document["bottle"], document["table_version"]
    if not isinstance(bottle, str) or not bottle or not bottle.isprintable():
        raise BadSnapshot(f"{name}: bottle must be a name")
    if type(version) is not int or version < 0:
        raise BadSnapshot(f"{name}: table_version must be a whole number")
    try:
        if datetime.fromisoformat(document["written_at"]).tzinfo is None:
            raise ValueError
    except (TypeError, ValueError) as error:
        raise BadSnapshot(f"{name}: written_at must be a time with a time zone") from error


def _parse(text: str, name: str) -> object:
    if len(text) > _MAX_FILE:
        raise BadSnapshot(f"{name} is larger than {_MAX_FILE} characters")
    try:
        _refuse_clever_yaml(text, name)
        return yaml.load(text, Loader=_UniqueKeyLoader)  # noqa: S506  (a safe loader, made stricter)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if isinstance(error, BadSnapshot):
            raise
        raise BadSnapshot(f"{name} is not valid YAML") from error


def _refuse_clever_yaml(text: str, name: str) -> None:
    """Refuse anchors, tags and deep nesting: they can make a small file huge or crash the parser."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise BadSnapshot(f"{name} uses YAML anchors")
        if getattr(event, "tag", None):
            raise BadSnapshot(f"{name} uses YAML tags")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise BadSnapshot(f"{name} is nested too deeply")


class _UniqueKeyLoader(_Loader):  # type: ignore[misc, valid-type]
    """Refuses repeated keys: YAML readers use the last of two, but a person may use the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise BadSnapshot(f"a key in the snapshot is not text: {quoted(key)}")
            if key in mapping:
                raise BadSnapshot(f"a key stands twice in the snapshot: {quoted(key)}")
            mapping[key] = self.construct_object(value_node, deep=deep)
        return mapping
