"""The few ways asking and deciding can fail. Each edge (MCP, console, API, CLI) translates them once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .models import Decision


class SuperviseError(Exception):
    """The message is a plain sentence the reader can act on."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class BadAsk(SuperviseError):
    """The ask itself is wrong; nothing was queued."""


class TooManyPending(SuperviseError):
    """The bottle already has as many open proposals as it may."""


class AskedTooOften(SuperviseError):
    """The bottle files faster than it may."""


class NoSuchProposal(SuperviseError):
    """Unknown, or another bottle's: the two look the same from outside."""


class NotPermitted(SuperviseError):
    """The actor may not decide."""


class MissingReason(SuperviseError):
    """A rejection must tell the agent why."""


class StaleReview(SuperviseError):
    """What the operator saw is not what would be applied now."""


class AlreadyDecided(SuperviseError):
    """Somebody else was first; `decision` says who."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(f"Already {decision.status} by {decision.actor_name}.")
        self.decision = decision
