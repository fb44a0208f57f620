"""One method call of an authenticated bottle, by MCP, `/rpc` or a context provider.

Raises ProtocolError for what cannot be served; the view adds the envelope and the HTTP status.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from botbottle.database.faults import Changes, fault_of
from botbottle.models import Bottle
from supervise.errors import BadAsk, SuperviseError
from supervise.mcp import catalog, tasks, tool_results, tools
from supervise.mcp.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND, UNAVAILABLE, Json, Prepared, ProtocolError
from supervise.mcp.session_context import facts as context
from supervise.mcp.session_context import text as context_text
from supervise.mcp.versions import (
    MODERN_VERSIONS,
    NEWEST,
    TASKS_EXTENSION,
    Era,
    era_of,
    reports_bad_input_as_result,
    server_info,
    shape_result,
)
from supervise.models import Proposal
from supervise.proposals import kind

# An extension: MCP has no method for a host that asks before there is a model.
SESSION_CONTEXT = "session/context"
UNKNOWN = (
    "It is not known whether the request arrived. Call check-proposal if you know the proposal's id; "
    "otherwise ask again: the same ask is not queued twice."
)
QUEUED = "The proposal stays as it is. Call check-proposal to see where it stands."  # to a call that waits


class Unavailable(ProtocolError):
    """The request is valid, but cannot be served now. `retry_after` is in seconds."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(UNAVAILABLE, f"{message} Try again in {retry_after} s.", http_status=503)
        self.retry_after = retry_after


@dataclass(frozen=True)
class Done:
    result: Json


@dataclass(frozen=True)
class Call:
    bottle: Bottle
    method: str
    params: Mapping[str, Any]
    version: str
    declares_tasks: bool


def dispatch(
    bottle: Bottle,
    method: str,
    params: Mapping[str, Any],
    *,
    version: str = NEWEST,
    declares_tasks: bool = False,
) -> Done | Proposal:
    """Serve one method in one protocol version.

    Returns the result, or the proposal whose outcome will be the result. A proposal is committed by then.
    """
    handler = _METHODS[era_of(version)].get(method)
    if handler is None:
        raise ProtocolError(METHOD_NOT_FOUND, f"Unknown method {method[:60]!a}.")
    answer = handler(Call(bottle, method, params, version, declares_tasks))
    if isinstance(answer, Proposal):
        return answer
    return Done(answer if isinstance(answer, Prepared) else shape_result(method, answer, version))


def _initialize(call: Call) -> Json:
    return {
        "protocolVersion": call.version,
        "capabilities": {"tools": {"listChanged": False}},
        "serverInfo": server_info(call.version),
        "instructions": catalog.INSTRUCTIONS,
    }


def _discover(call: Call) -> Json:
    return {
        "supportedVersions": list(MODERN_VERSIONS),
        "capabilities": {"tools": {"listChanged": False}, "extensions": {TASKS_EXTENSION: {}}},
        "instructions": catalog.INSTRUCTIONS,
    }


def _ping(call: Call) -> Json:
    return {}


def _list_tools(call: Call) -> Json:
    if call.params.get("cursor") is not None:
        raise ProtocolError(INVALID_PARAMS, "The list has one page: leave out the cursor.")
    return _tool_list(call.version, kind.names())


@cache
def _tool_list(version: str, names: tuple[str, ...]) -> Prepared:
    """The same list for every bottle; clients ask for it at each start. `names` are those of the kinds."""
    tools = {"tools": [tool.as_json() for tool in catalog.tools()]}
    return Prepared(shape_result("tools/list", tools, version))


def _call_tool(call: Call) -> Json | Proposal:
    name, arguments = call.params.get("name"), call.params.get("arguments")
    if name is None:
        raise ProtocolError(INVALID_PARAMS, "params.name is missing: it says which tool to call.")
    tool = catalog.find(name) if isinstance(name, str) else None
    if tool is None:
        known = ", ".join(tool.name for tool in catalog.tools())
        raise ProtocolError(INVALID_PARAMS, f"Unknown tool {ascii(name)[:62]}. The tools are: {known}.")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise ProtocolError(INVALID_PARAMS, "arguments must be an object.")
    try:
        answer = tools.call(call.bottle, tool, arguments)
    except SuperviseError as error:
        if not reports_bad_input_as_result(call.version):
            raise ProtocolError(INVALID_PARAMS, error.message) from error
        return tool_results.text_result(error.message, is_error=True)
    if isinstance(answer, Proposal) and call.declares_tasks:
        return tasks.created(call.bottle, str(answer.pk))
    return answer


def _session_context(call: Call) -> Json:
    try:
        ask = context.parse_ask(call.params)
    except BadAsk as error:
        raise ProtocolError(INVALID_PARAMS, error.message) from error
    facts = context.session_context(call.bottle, ask)
    return {"text": context_text.render(facts)} if ask.format is context.Format.TEXT else facts


def _task_method(serve: Callable[[Bottle, Mapping[str, Any]], Json]) -> Callable[[Call], Json]:
    def handler(call: Call) -> Json:
        tasks.check_declared(call.declares_tasks)
        return serve(call.bottle, call.params)

    return handler


_METHODS: Mapping[Era, Mapping[str, Callable[[Call], Json | Proposal]]] = {
    Era.HANDSHAKE: {
        "initialize": _initialize,
        "ping": _ping,
        "tools/list": _list_tools,
        "tools/call": _call_tool,
        SESSION_CONTEXT: _session_context,
    },
    Era.MODERN: {
        "server/discover": _discover,
        "tools/list": _list_tools,
        "tools/call": _call_tool,
        SESSION_CONTEXT: _session_context,
        "tasks/get": _task_method(tasks.get),
        "tasks/update": _task_method(tasks.update),
        "tasks/cancel": _task_method(tasks.cancel),
    },
}


def unavailable(
    error: BaseException, changes: Changes | None, *, unknown: str = UNKNOWN
) -> Unavailable | None:
    """The error for a database fault, or None if the exception is something else.

    `unknown` says how to learn the outcome of the request, unless it certainly changed nothing.
    """
    fault = fault_of(error)
    if fault is None:
        return None
    return Unavailable(fault.message(changes, unknown=unknown), fault.cause.retry_after)
