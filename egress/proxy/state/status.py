"""What the control plane is told of this process and of each bottle."""

from __future__ import annotations

from time import monotonic
from typing import Any

from egress.policy.routes import Auth
from egress.proxy.credentials.secrets import Secrets
from egress.proxy.credentials.sigv4 import AwsKey
from egress.proxy.state.bottle import BottleState


def bottle_status(bottle: BottleState, secrets: Secrets) -> dict[str, Any]:
    problems = [_problem_with(auth, secrets) for auth in bottle.wanted_secrets()]
    problems.append(bottle.handed.current(monotonic()).problem)
    return {
        **bottle.ack().as_dict(),
        "connections": len(bottle.connections),
        "held_bytes": bottle.held_bytes,
        "flows": len(bottle.flows),
        "pooled": len(bottle.pool),
        "counters": dict(bottle.counters),
        "credential_problems": list(dict.fromkeys(problem for problem in problems if problem)),
    }


def _problem_with(auth: Auth, secrets: Secrets) -> str | None:
    problem, name = secrets.problem(auth.token_ref), auth.token_ref
    if problem or auth.scheme != "SigV4" or AwsKey.parse(secrets.lookup(name) or ""):
        return problem
    return f"The secret {name} is not a key for AWS: write ACCESS_KEY_ID:SECRET_ACCESS_KEY in its place."
