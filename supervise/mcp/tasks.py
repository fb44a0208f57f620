"""The tasks extension: a proposal as a task. All state is in the database, so any worker can answer.

A client's `tasks/update` is never an approval: only operators decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from botbottle.models import Bottle
from supervise.errors import AlreadyDecided, NoSuchProposal
from supervise.mcp import tool_results
from supervise.mcp.jsonrpc import INVALID_PARAMS, MISSING_CAPABILITY, Json, ProtocolError
from supervise.mcp.versions import TASKS_EXTENSION
from supervise.models import Proposal
from supervise.proposals import decisions, queries
from supervise.proposals.outcomes import outcome_of

POLL_INTERVAL_MS = 2000


def created(bottle: Bottle, proposal_id: str) -> Json:
    """The result of a call that became a task. The proposal is committed, so `tasks/get` finds it."""
    return {"resultType": "task", **_task(queries.get_proposal(proposal_id, bottle=bottle))}


def get(bottle: Bottle, params: Mapping[str, Any]) -> Json:
    proposal = _find(bottle, params)
    task = _task(proposal)
    if task["status"] == "completed":
        outcome = outcome_of(proposal, queries.decision_of(proposal))
        task["result"] = tool_results.call_result(outcome)
    return task


def update(bottle: Bottle, params: Mapping[str, Any]) -> Json:
    """Ignore a client's responses: the server asks for nothing."""
    _find(bottle, params)
    if not isinstance(params.get("inputResponses", {}), dict):
        raise ProtocolError(INVALID_PARAMS, "inputResponses must be an object.")
    return {}


def cancel(bottle: Bottle, params: Mapping[str, Any]) -> Json:
    """Withdraw the task's proposal. A decided one stays as it is."""
    proposal = _find(bottle, params)
    with suppress(AlreadyDecided):
        decisions.withdraw(proposal.pk, bottle=bottle)
    return {}


def check_declared(declared: bool) -> None:
    if not declared:
        raise ProtocolError(
            MISSING_CAPABILITY,
            f"Declare the extension {TASKS_EXTENSION} in this request's client capabilities.",
            data={"requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}},
        )


def _find(bottle: Bottle, params: Mapping[str, Any]) -> Proposal:
    task_id = params.get("taskId")
    if not isinstance(task_id, str) or not task_id:
        raise ProtocolError(INVALID_PARAMS, "taskId must be a non-empty string.")
    try:
        return queries.get_proposal(task_id, bottle=bottle)
    except NoSuchProposal:
        raise ProtocolError(
            INVALID_PARAMS, "There is no such task. It may belong to another bottle."
        ) from None


def _task(proposal: Proposal) -> Json:
    decision = queries.decision_of(proposal)
    outcome = outcome_of(proposal, decision)
    if proposal.status == Proposal.Status.WITHDRAWN:
        status = "cancelled"
    else:
        status = "completed" if outcome.is_final else "working"
    changed = (decision.live_at or decision.created_at) if decision else proposal.created_at
    return {
        "taskId": str(proposal.pk),
        "status": status,
        "statusMessage": outcome.explanation,
        "createdAt": _timestamp(proposal.created_at),
        "lastUpdatedAt": _timestamp(changed),
        "ttlMs": None,
        "pollIntervalMs": POLL_INTERVAL_MS,
    }


def _timestamp(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
