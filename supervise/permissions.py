"""Who may look, who may decide, and who may start bottles. Every edge asks here."""

from __future__ import annotations

from django.contrib.auth.models import AnonymousUser, User

VIEW = "supervise.view_proposal"
DECIDE = "supervise.decide_proposal"
RUN = "botbottle.run_bottle"


def may_decide(user: User | AnonymousUser) -> bool:
    return user.is_active and user.has_perm(DECIDE)


def may_run(user: User | AnonymousUser) -> bool:
    """Start and stop bottles."""
    return user.is_active and user.has_perm(RUN)


def may_view(user: User | AnonymousUser) -> bool:
    """Whoever may decide may look: nothing is decided unseen."""
    return user.is_active and (user.has_perm(VIEW) or user.has_perm(DECIDE))
