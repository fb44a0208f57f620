"""The gate's allowlist as a configuration for pipelock, which watches its file and reloads it by itself.

Pure. Only fields that pipelock knows: it rejects a file with any other.
"""

from __future__ import annotations

from collections.abc import Iterable

from egress.contract.snapshot import as_yaml


def render_pipelock(gate_hosts: Iterable[str]) -> str:
    """One pipelock serves all bottles: it allows what any of their gates allows, behind each bottle's own
    gate.
    """
    config = {
        "version": 1,
        "mode": "strict",
        "enforce": True,
        "api_allowlist": sorted(set(gate_hosts)),
        "forward_proxy": {"enabled": True},
    }
    return as_yaml(config)
