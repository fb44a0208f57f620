"""What a bottle's requests are searched for, at one moment."""

from __future__ import annotations

from dataclasses import dataclass

from egress.dlp import Scanner
from egress.policy import Snapshot

from .handed import Handed


@dataclass(frozen=True, slots=True)
class Search:
    """What requests are searched for: true of one table and of what the bottle was handed.

    And until the secrets that the proxy adds have to be looked up again.
    """

    snapshot: Snapshot
    until: float
    scanner: Scanner
    handed: Handed
