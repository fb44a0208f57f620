"""The domain errors of asking and deciding. MCP, console, API and CLI translate each of them once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from supervise.models import Decision


class SuperviseError(Exception):
    """The base of all of them. The message is a plain sentence that the reader can act on; the code is for
    programs.
    """

    code = "refused"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class BadAsk(SuperviseError):
    """The ask itself is wrong; nothing was queued."""

    code = "bad_ask"


class TooManyPending(SuperviseError):
    """The bottle has the most open proposals that it may have."""

    code = "too_many_pending"


class AskedTooOften(SuperviseError):
    """The bottle submits proposals faster than it may."""

    code = "asked_too_often"


class NoRoom(SuperviseError):
    """The disk of the database is nearly full, and the rest is reserved for operators."""

    code = "no_room"


class NoSuchProposal(SuperviseError):
    """Unknown, or another bottle's: both look the same from outside."""

    code = "no_such_proposal"


class NotPermitted(SuperviseError):
    """The actor may not decide."""

    code = "not_permitted"


class MissingReason(SuperviseError):
    """A rejection must give the agent a reason."""

    code = "missing_reason"


class StaleReview(SuperviseError):
    """What the operator saw is not what would be applied now."""

    code = "stale_review"


class TooRisky(SuperviseError):
    """Riskier than this kind of approval allows."""

    code = "too_risky"


class AlreadyDecided(SuperviseError):
    """Another operator was first; `decision` is theirs."""

    code = "already_decided"

    def __init__(self, decision: Decision) -> None:
        super().__init__(f"Already {decision.status} by {decision.actor_name}.")
        self.decision = decision

    @property
    def facts(self) -> dict[str, str]:
        return {
            "status": self.decision.status,
            "decided_by": self.decision.actor_name,
            "decided_at": self.decision.created_at.isoformat(),
        }
