"""What an agent is told when the database is at fault: the reason, and when to try again."""

from __future__ import annotations

from botbottle.database.faults import Changes, fault_of
from supervise.mcp.jsonrpc import UNAVAILABLE, ProtocolError

UNKNOWN = (
    "It is not known whether the request arrived. Call check-proposal if you know the proposal's id; "
    "otherwise ask again: the same ask is not queued twice."
)

QUEUED = "The proposal stays as it is. Call check-proposal to see where it stands."  # to a call that waits


class Unavailable(ProtocolError):
    """Nothing is wrong with the request. `retry_after` is in seconds."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(UNAVAILABLE, f"{message} Try again in {retry_after} s.", http_status=503)
        self.retry_after = retry_after


def unavailable(
    error: BaseException, changes: Changes | None, *, unknown: str = UNKNOWN
) -> Unavailable | None:
    """The refusal for a database fault, or None: the error is something else.

    `unknown` says how to find out what became of the request, unless it certainly changed nothing.
    """
    fault = fault_of(error)
    if fault is None:
        return None
    return Unavailable(fault.message(changes, unknown=unknown), fault.cause.retry_after)
