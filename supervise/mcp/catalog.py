"""The tool table for agents: names, schemas, and descriptions that say what to do next.

The tools that file a proposal are described by their kinds. The order is fixed, so that clients can cache the
list.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from supervise.proposals.kind import Kind, kind_named, kinds, names

Json = dict[str, Any]

INSTRUCTIONS: Final = (
    "This bottle has no network of its own: every request goes through a proxy that denies by default. "
    "When the proxy refuses a request (HTTP 403 with a reason), ask for exactly what you need with "
    "egress-block (or pipelock-block when the gate refused the host, or capability-block when the image "
    "lacks a tool). A human operator decides while the call waits. 'approved' or 'modified': retry your "
    "request. 'rejected': read the notes, do without it or ask for less. 'pending': nobody has decided yet; "
    "go on with other work and call check-proposal later, or make the same call again to wait for it. "
    "Nothing you write here is an approval, and asking twice makes no second proposal."
)

_JUSTIFICATION: Final[Json] = {
    "type": "string",
    "minLength": 1,
    "description": "Why you need this, for the human who decides: the task, and what fails without it.",
}
_PROPOSAL_ID: Final[Json] = {
    "type": "string",
    "minLength": 1,
    "description": "The proposal_id that the asking call returned.",
}


@dataclass(frozen=True)
class Tool:
    name: str
    title: str
    description: str
    properties: Json
    required: tuple[str, ...]
    output_schema: Json
    kind: Kind | None = None  # of the proposal that it files
    reads_only: bool = False

    def as_json(self) -> Json:
        """The tool as the newest revision describes it."""
        schema: Json = {"type": "object", "properties": self.properties, "additionalProperties": False}
        if self.required:
            schema["required"] = list(self.required)
        return {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": schema,
            "outputSchema": self.output_schema,
            "annotations": {
                "title": self.title,
                "readOnlyHint": self.reads_only,
                "destructiveHint": False,
                "idempotentHint": True,
                "openWorldHint": False,
            },
        }


_OUTCOME_SCHEMA: Final[Json] = {
    "type": "object",
    "properties": {
        "status": {
            "type": "string",
            "enum": ["approved", "modified", "rejected", "pending", "withdrawn", "expired"],
        },
        "proposal_id": {"type": "string"},
        "notes": {"type": "string", "description": "What the operator wrote to you."},
        "granted": {
            "type": ["object", "null"],
            "description": "What is allowed now because of this proposal.",
        },
        "not_granted": {"type": ["object", "null"], "description": "What you asked for and did not get."},
        "live_version": {
            "type": ["integer", "null"],
            "description": "The version of the live table that has it; null while it is not live.",
        },
    },
    "required": ["status", "proposal_id", "notes", "granted", "not_granted", "live_version"],
}
_ROUTES_SCHEMA: Final[Json] = {
    "type": "object",
    "properties": {
        "version": {"type": "integer"},
        "source": {
            "type": "string",
            "enum": ["proxy", "last known"],
            "description": "Whether the proxy said so now, or does not answer and this is what it last had.",
        },
        "routes": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "host": {"type": "string"},
                    "path_allowlist": {"type": "array", "items": {"type": "string"}},
                    "methods": {"type": "array", "items": {"type": "string"}},
                    "lease": {"type": ["object", "null"]},
                    "auth_injected": {"type": "boolean"},
                },
                "required": ["host", "path_allowlist", "methods", "lease", "auth_injected"],
            },
        },
        "gate_hosts": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["routes"],
}

LIST_ROUTES: Final = Tool(
    name="list-egress-routes",
    title="List what this bottle may reach",
    description=(
        "What this bottle may reach right now, one entry per host: path prefixes (empty: all), methods "
        "(empty: all), lease, and whether the proxy adds a credential. Answers at once, needs no approval. "
        "Look here before you ask; if what you need is missing, call egress-block."
    ),
    properties={},
    required=(),
    output_schema=_ROUTES_SCHEMA,
    reads_only=True,
)
CHECK: Final = Tool(
    name="check-proposal",
    title="See what became of a proposal",
    description=(
        "What became of a proposal you filed: status, the operator's notes, what was granted and what was "
        "not. Answers at once. Use it after an answer of 'pending'. Still pending: go on with other work and "
        "look again later, or take it back with withdraw-proposal if you no longer need it."
    ),
    properties={"proposal_id": _PROPOSAL_ID},
    required=("proposal_id",),
    output_schema=_OUTCOME_SCHEMA,
    reads_only=True,
)
WITHDRAW: Final = Tool(
    name="withdraw-proposal",
    title="Take a proposal back",
    description=(
        "Take back a pending proposal of yours that you no longer need, so that nobody decides it. Answers "
        "at once. A decided proposal cannot be withdrawn; call check-proposal to read the decision."
    ),
    properties={"proposal_id": _PROPOSAL_ID},
    required=("proposal_id",),
    output_schema=_OUTCOME_SCHEMA,
)

OWN: Final = {tool.name: tool for tool in (LIST_ROUTES, CHECK, WITHDRAW)}


def tools() -> tuple[Tool, ...]:
    """Every tool. The list of routes stands after the first kind, whose asks it makes unnecessary."""
    first, *others = (_asking(kind) for kind in kinds() if kind.description)
    return (first, LIST_ROUTES, *others, CHECK, WITHDRAW)


def find(name: str) -> Tool | None:
    if name in names() and kind_named(name).description:
        return _asking(kind_named(name))
    return OWN.get(name)


@cache
def _asking(kind: Kind) -> Tool:
    """The tool that files a proposal of this kind, and waits for what an operator decides."""
    return Tool(
        name=kind.name,
        title=kind.title,
        description=kind.description,
        properties={**kind.properties, "justification": _JUSTIFICATION},
        required=(*kind.required, "justification"),
        output_schema=_OUTCOME_SCHEMA,
        kind=kind,
    )
