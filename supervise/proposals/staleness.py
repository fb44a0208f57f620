"""What changed after an operator looked, for a form that came too late and decided nothing.

A form carries a short fingerprint of the review that it showed. The fingerprint only chooses what is
explained; the digest alone decides.
"""

from __future__ import annotations

import re
from dataclasses import replace

from supervise.digests import digest
from supervise.proposals.kind import ChangesSince, Review, kind_of

_FINGERPRINT = re.compile(r"([0-9a-f]{16}) ([0-9a-z. ]{0,60})")


def fingerprint(review: Review) -> str:
    """The risk, and what the kind needs to know of the bottle's state."""
    return f"{_risk(review)} {kind_of(review.proposal).fingerprint(review)}"


def changed_since(seen: str, now: Review) -> ChangesSince | None:
    """None when the fingerprint cannot be read, or nothing changed of what it covers."""
    match = _FINGERPRINT.fullmatch(seen)
    found = kind_of(now.proposal).changed_since(match[2], now) if match else None
    if match is None or found is None:
        return None
    if match[1] != _risk(now):
        sentence = f"It is {now.risk.level.word} risk now: {'; '.join(now.risk.reasons)}."
        found = replace(found, sentences=(*found.sentences, sentence))
    return found if found.sentences or found.diff else None


def _risk(review: Review) -> str:
    return digest([review.risk.level, review.risk.reasons])[:16]
