"""What can go wrong with one request or one connection, and the answer each gets, as a plain sentence."""

from __future__ import annotations

from typing import Any


class Refusal(Exception):
    """The request goes nowhere. `reason` is a stable code, `ask` the tool call that would help, if any."""

    is_ours = True  # or else we would have let it pass, and the other end failed

    def __init__(
        self,
        reason: str,
        sentence: str,
        status: int = 403,
        *,
        ask: dict[str, Any] | None = None,
        details: dict[str, str] | None = None,
    ) -> None:
        super().__init__(sentence)
        self.reason = reason
        self.sentence = sentence
        self.status = status
        self.ask = ask
        self.details = details or {}
        self.git_report: bytes | None = None  # the answer in git's own terms, which replaces all others


class BadRequest(Refusal):
    """Malformed or ambiguous."""

    def __init__(self, reason: str, sentence: str, status: int = 400) -> None:
        super().__init__(reason, sentence, status)


class BadAnswer(Refusal):
    """The origin broke the protocol."""

    is_ours = False

    def __init__(self, sentence: str) -> None:
        super().__init__("bad-answer", sentence, 502)


class Unreachable(Refusal):
    """The origin could not be reached, or not safely."""

    is_ours = False

    def __init__(self, reason: str, sentence: str, status: int = 502) -> None:
        super().__init__(reason, sentence, status)


class Gone(Exception):
    """The other end left, or the connection was cut: there is nobody to answer, but a record to keep."""

    def __init__(self, reason: str = "gone") -> None:
        super().__init__(reason)
        self.reason = reason
