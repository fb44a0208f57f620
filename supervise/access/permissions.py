"""Who may view, who may decide, and who may start bottles. Console, API and commands all use it."""

from __future__ import annotations

from django.contrib.auth.models import AnonymousUser, User

from botbottle.models import Bottle
from supervise.models import Assignment

VIEW = "supervise.view_proposal"
DECIDE = "supervise.decide_proposal"
RUN = "botbottle.run_bottle"
ASSIGN = "supervise.add_assignment"


def is_staff(user: User | AnonymousUser) -> bool:
    """Without staff status a user can neither see nor do anything, at the console or through the API."""
    return user.is_active and user.is_staff


def may_decide(user: User | AnonymousUser) -> bool:
    return is_staff(user) and user.has_perm(DECIDE)


def may_run(user: User | AnonymousUser) -> bool:
    """Whether the user may start and stop bottles."""
    return is_staff(user) and user.has_perm(RUN)


def may_view(user: User | AnonymousUser) -> bool:
    """Users who may decide may also view: nothing is decided unseen."""
    return is_staff(user) and (user.has_perm(VIEW) or user.has_perm(DECIDE))


def may_decide_for(user: User | AnonymousUser, bottle: Bottle) -> bool:
    """A bottle with assigned operators is decided by them, or by users who could assign themselves."""
    return may_decide(user) and _is_among(user, bottle)


def may_run_for(user: User | AnonymousUser, bottle: Bottle) -> bool:
    return may_run(user) and _is_among(user, bottle)


def bottles_assigned_to_others(user: User | AnonymousUser) -> set[int]:
    """Bottles that only other operators decide for. One query, for pages that show many."""
    if user.has_perm(ASSIGN):
        return set()
    pairs = list(Assignment.objects.values_list("bottle_id", "operator_id"))
    return {bottle for bottle, _ in pairs} - {bottle for bottle, operator in pairs if operator == user.pk}


def _is_among(user: User | AnonymousUser, bottle: Bottle) -> bool:
    operators = set(Assignment.objects.filter(bottle=bottle).values_list("operator_id", flat=True))
    return not operators or user.pk in operators or user.has_perm(ASSIGN)
