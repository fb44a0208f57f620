"""Parses YAML into plain values with the line of every key, without the surprising parts of YAML.

Trust boundary: the file may contain anything; what is not plain is refused with its line.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import yaml

from egress.policy.errors import quoted

MAX_CHARACTERS = 256 * 1024
MAX_DEPTH = 12

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CONSTRUCTED = {f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float")}


class BadYaml(ValueError):
    """The text is refused. `str(error)` is a sentence; `line` counts from 1."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line = line


def read(text: str) -> tuple[Any, dict[str, int]]:
    """Return the value, and the line of each key: `env.NAME`, `routes[0].host`. Raises BadYaml."""
    if len(text) > MAX_CHARACTERS:
        raise BadYaml(1, f"it is longer than {MAX_CHARACTERS} characters.")
    try:
        _refuse_clever_yaml(text)
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            lines: dict[str, int] = {}
            return (None if node is None else _plain(loader, node, "", lines)), lines
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        problem = getattr(error, "problem", None) or "it has a character that YAML does not allow"
        raise BadYaml(mark.line + 1 if mark else 1, f"it is not valid YAML: {problem}.") from error


def unknown(name: object, allowed: Sequence[str]) -> str:
    """The sentence about an unknown key."""
    near = get_close_matches(str(name), allowed, n=1)
    meant = f" Did you mean {near[0]!r}?" if near else ""
    return f"there is no such key.{meant} Allowed: {', '.join(allowed)}."


def _refuse_clever_yaml(text: str) -> None:
    """Refuse anchors, tags and deep nesting: they make a small file huge, or change its meaning."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise BadYaml(line, "YAML anchors are not allowed: write the value out.")
        if getattr(event, "tag", None):
            raise BadYaml(line, "YAML tags are not allowed: leave out what begins with '!'.")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise BadYaml(line, "it is nested too deeply.")


def _plain(loader: Any, node: yaml.Node, key: str, lines: dict[str, int]) -> Any:
    if isinstance(node, yaml.MappingNode):
        return _plain_mapping(loader, node, key, lines)
    if isinstance(node, yaml.SequenceNode):
        entries = []
        for index, entry in enumerate(node.value):
            lines[f"{key}[{index}]"] = entry.start_mark.line + 1
            entries.append(_plain(loader, entry, f"{key}[{index}]", lines))
        return entries
    # Dates and the like stay text.
    return loader.construct_object(node) if node.tag in _CONSTRUCTED else node.value


def _plain_mapping(loader: Any, node: yaml.MappingNode, key: str, lines: dict[str, int]) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        name = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
        if name is None or key_node.tag in _CONSTRUCTED:
            raise BadYaml(line, f"the key {quoted(name)} is not text. Put it in quotes.")
        if name in mapping:
            raise BadYaml(line, f"the key {quoted(name)} stands twice. Keep one of them.")
        inside = f"{key}.{name}" if key else name
        lines[inside] = line
        mapping[name] = _plain(loader, value_node, inside, lines)
    return mapping
