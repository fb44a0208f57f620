"""What a bottle's requests are searched for, at one moment."""

from __future__ import annotations

from dataclasses import dataclass

from egress.dlp.scanner import Scanner
from egress.policy.table import Snapshot
from egress.proxy.state.secret_variables import SecretVariables


@dataclass(frozen=True, slots=True)
class ActiveScan:
    """A scanner that is valid for one table and one set of secret variables.

    And until the secrets that the proxy adds have to be looked up again.
    """

    snapshot: Snapshot
    until: float
    scanner: Scanner
    handed: SecretVariables
