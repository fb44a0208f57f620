from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User

from supervise.models import Proposal
from supervise.proposals import decisions
from tests.support.proposals import seen


@pytest.fixture
def approve(operator: User) -> Callable[..., Any]:
    """An operator who looks and says yes."""

    def look_and_approve(proposal: Proposal, *, actor: User = operator, **more: Any) -> Any:
        return decisions.approve(proposal.pk, actor=actor, seen_digest=seen(proposal), **more)

    return look_and_approve


@pytest.fixture
def modify(operator: User) -> Callable[..., Any]:
    def look_and_modify(proposal: Proposal, *, actor: User = operator, **payload: Any) -> Any:
        digest = seen(proposal)
        return decisions.modify(proposal.pk, actor=actor, seen_digest=digest, payload=payload)

    return look_and_modify
