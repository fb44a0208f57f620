"""What each tool does with its arguments. They are an agent's, unchecked; the bottle was proven before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from botbottle.models import Bottle
from egress.policy.asks import parse_egress_ask, parse_gate_ask
from supervise.bottles.images import check_dockerfile_for
from supervise.errors import AlreadyDecided, BadAsk, SuperviseError
from supervise.mcp import catalog, tool_results
from supervise.mcp.catalog import Json, Tool
from supervise.models import Proposal
from supervise.proposals import decisions, queries
from supervise.proposals.submit import submit_proposal
from supervise.sanitize import without_nul

Arguments = Mapping[str, Any]


def call(bottle: Bottle, tool: Tool, arguments: Arguments) -> Json | Proposal:
    """Run one tool. Returns its result, or the submitted or joined proposal, whose outcome is the result.

    Raises SuperviseError with a sentence for the agent; then nothing changed.
    """
    _check_keys(tool, arguments)
    if tool.asks:
        return _ask(bottle, tool, arguments)
    if tool is catalog.LIST_ROUTES:
        return tool_results.routes_result(queries.live_routes(bottle))
    proposal_id = _required_text(arguments, "proposal_id")
    if tool is catalog.WITHDRAW:
        _withdraw(bottle, proposal_id)
    return tool_results.outcome_result(queries.outcome(proposal_id, bottle=bottle))


def _withdraw(bottle: Bottle, proposal_id: str) -> None:
    try:
        decisions.withdraw(proposal_id, bottle=bottle)
    except AlreadyDecided as error:
        error.message = f"{error.message} Call check-proposal to read the decision."
        raise


def _ask(bottle: Bottle, tool: Tool, arguments: Arguments) -> Proposal:
    try:
        justification = _required_text(arguments, "justification")
        payload = _checked_payload(bottle, tool, {k: v for k, v in arguments.items() if k != "justification"})
        filed = submit_proposal(bottle, tool.name, payload, justification)
    except SuperviseError as error:
        error.message = f"{_sentence(error.message)} Nothing was queued."
        raise
    return filed.proposal


def _checked_payload(bottle: Bottle, tool: Tool, arguments: Arguments) -> Json:
    try:
        if tool is catalog.CAPABILITY:
            return _parse_dockerfile(bottle, arguments)
        return _PARSERS[tool.name](arguments)
    except ValueError as error:  # the parsers' own refusals
        raise BadAsk(str(error)) from error


def _parse_dockerfile(bottle: Bottle, arguments: Arguments) -> Json:
    dockerfile = _required_text(arguments, "dockerfile")
    check_dockerfile_for(bottle, dockerfile)
    if without_nul(dockerfile) != dockerfile:  # what is approved must be, byte for byte, what was asked
        raise BadAsk("dockerfile has lone surrogates, which are not text.")
    return {"dockerfile": dockerfile}


_PARSERS: Mapping[str, Callable[[Arguments], Json]] = {
    catalog.EGRESS.name: parse_egress_ask,
    catalog.GATE.name: parse_gate_ask,
}


def _check_keys(tool: Tool, arguments: Arguments) -> None:
    unknown = [key for key in arguments if key not in tool.properties]
    if unknown:
        takes = ", ".join(tool.properties) or "no arguments"
        suffix = " Nothing was queued." if tool.asks else ""
        raise BadAsk(f"{tool.name} does not know {unknown[0][:60]!a}: it takes {takes}.{suffix}")


def _required_text(arguments: Arguments, name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str) or not value.strip():
        raise BadAsk(f"{name} is required and must be text that is not empty.")
    return value


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
