"""What each tool does with its arguments. Arguments are unchecked; the bottle was authenticated before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from botbottle.models import Bottle
from supervise.errors import AlreadyDecided, BadAsk, SuperviseError
from supervise.mcp import catalog, tool_results
from supervise.mcp.catalog import Json, Tool
from supervise.models import Proposal
from supervise.proposals import decisions, queries
from supervise.proposals.kind import Kind, required_text
from supervise.proposals.submit import submit_proposal

Arguments = Mapping[str, Any]


def call(bottle: Bottle, tool: Tool, arguments: Arguments) -> Json | Proposal:
    """Run one tool. Returns its result, or the submitted or joined proposal, whose outcome is the result.

    Raises SuperviseError with a sentence for the agent; then nothing changed.
    """
    _check_keys(tool, arguments)
    if tool.kind is not None:
        return _ask(bottle, tool.kind, arguments)
    return _OWN[tool.name](bottle, arguments)


def _list_routes(bottle: Bottle, arguments: Arguments) -> Json:
    return tool_results.routes_result(queries.live_routes(bottle))


def _check(bottle: Bottle, arguments: Arguments) -> Json:
    proposal_id = required_text(arguments, "proposal_id")
    return tool_results.outcome_result(queries.outcome(proposal_id, bottle=bottle))


def _withdraw(bottle: Bottle, arguments: Arguments) -> Json:
    try:
        decisions.withdraw(required_text(arguments, "proposal_id"), bottle=bottle)
    except AlreadyDecided as error:
        error.message = f"{error.message} Call check-proposal to read the decision."
        raise
    return _check(bottle, arguments)


_OWN: Mapping[str, Callable[[Bottle, Arguments], Json]] = {
    catalog.LIST_ROUTES.name: _list_routes,
    catalog.CHECK.name: _check,
    catalog.WITHDRAW.name: _withdraw,
}


def _ask(bottle: Bottle, kind: Kind, arguments: Arguments) -> Proposal:
    try:
        justification = required_text(arguments, "justification")
        payload = _parse(bottle, kind, {k: v for k, v in arguments.items() if k != "justification"})
        filed = submit_proposal(bottle, kind.name, payload, justification)
    except SuperviseError as error:
        error.message = f"{_sentence(error.message)} Nothing was queued."
        raise
    return filed.proposal


def _parse(bottle: Bottle, kind: Kind, arguments: Arguments) -> Json:
    try:
        return kind.parse(bottle, arguments)
    except ValueError as error:  # the parsers' own refusals
        raise BadAsk(str(error)) from error


def _check_keys(tool: Tool, arguments: Arguments) -> None:
    unknown = [key for key in arguments if key not in tool.properties]
    if unknown:
        takes = ", ".join(tool.properties) or "no arguments"
        suffix = " Nothing was queued." if tool.kind else ""
        raise BadAsk(f"{tool.name} does not know {unknown[0][:60]!a}: it takes {takes}.{suffix}")


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
