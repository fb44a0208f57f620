"""The tool table for agents: names, schemas, and descriptions that say what to do next.

Pure. The order is fixed, so that clients can cache the list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from botbottle.dockerfiles.parse import MOST_BYTES, MOST_INSTRUCTIONS

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

_WAITS: Final = (
    "The call waits for a human operator and returns a status. approved: it is applied, go on. modified: the "
    "operator changed it; read 'granted' and 'not_granted'. rejected: read 'notes', then do without it or "
    "ask for less. pending: not decided yet, still queued; do other work and call check-proposal with the "
    "proposal_id, or make the same call again to wait for it (it joins the open proposal)."
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
    asks: bool = False  # files a proposal that a human decides
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

EGRESS: Final = Tool(
    name="egress-block",
    title="Ask to reach a host",
    description=(
        "Ask to reach a host that the egress proxy refuses. Use it after a 403 from the proxy, with the "
        "arguments its refusal suggests; ask for the narrowest paths and methods that do the job, they are "
        f"approved sooner. {_WAITS} After approval retry the refused request: the route is live."
    ),
    properties={
        "host": {
            "type": "string",
            "minLength": 1,
            "description": "A public hostname such as api.example.com: no scheme, no port, no IP address.",
        },
        "justification": _JUSTIFICATION,
        "path_allowlist": {
            "type": "array",
            "items": {"type": "string", "pattern": "^/"},
            "description": "Path prefixes, each starting with '/'; '/repos' allows /repos and /repos/x. "
            "Leave it out to ask for all paths.",
        },
        "methods": {
            "type": "array",
            "items": {"type": "string"},
            "description": "HTTP methods such as GET. Leave it out to ask for all.",
        },
        "auth": {
            "type": "object",
            "properties": {
                "scheme": {"type": "string", "enum": ["Bearer", "token"]},
                "token_ref": {
                    "type": "string",
                    "description": "The name of a credential the operator keeps. Never put a secret here.",
                },
            },
            "required": ["scheme", "token_ref"],
            "additionalProperties": False,
            "description": "Ask that the proxy adds an Authorization header for you.",
        },
        "lease": {
            "type": "object",
            "properties": {
                "ttl_seconds": {"type": "integer", "minimum": 1},
                "max_uses": {"type": "integer", "minimum": 1},
            },
            "additionalProperties": False,
            "description": "Ask only for a time or a number of requests.",
        },
    },
    required=("host", "justification"),
    output_schema=_OUTCOME_SCHEMA,
    asks=True,
)
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
GATE: Final = Tool(
    name="pipelock-block",
    title="Ask the gate to allow a host",
    description=(
        "Ask to add a hostname to the gate's allowlist. Use it only when a request has a route (see "
        "list-egress-routes) and was refused by the gate (pipelock) because of its hostname; for a host with "
        f"no route use egress-block, which opens the gate as well. {_WAITS}"
    ),
    properties={
        "failed_url": {
            "type": "string",
            "minLength": 1,
            "description": "The http or https URL that was refused. Its hostname is what you ask for; the "
            "rest helps the operator to understand.",
        },
        "justification": _JUSTIFICATION,
    },
    required=("failed_url", "justification"),
    output_schema=_OUTCOME_SCHEMA,
    asks=True,
)
CAPABILITY: Final = Tool(
    name="capability-block",
    title="Ask for a changed image",
    description=(
        "Ask for another image for this bottle, when a program or library you need is not installed and "
        "cannot be had otherwise. Send the whole new Dockerfile, starting from the present one in "
        "/etc/bot-bottle/current-config/Dockerfile. It is built from its text alone, with this bottle's "
        "routes as its only network: fetch with RUN, through them. Not taken are ADD, ONBUILD, VOLUME, "
        "heredocs (<<), escape and check directives, flags other than COPY --from= and --chown=, and base "
        f"images that are not on the host yet. {_WAITS} The answer says what was done with the approved "
        "Dockerfile; commit your work before you ask."
    ),
    properties={
        "dockerfile": {
            "type": "string",
            "minLength": 1,
            "description": (
                f"The complete text of the new Dockerfile: at most {MOST_BYTES // 1024} KiB and "
                f"{MOST_INSTRUCTIONS} instructions."
            ),
        },
        "justification": _JUSTIFICATION,
    },
    required=("dockerfile", "justification"),
    output_schema=_OUTCOME_SCHEMA,
    asks=True,
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

TOOLS: Final = (EGRESS, LIST_ROUTES, GATE, CAPABILITY, CHECK, WITHDRAW)
BY_NAME: Final = {tool.name: tool for tool in TOOLS}
