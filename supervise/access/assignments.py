"""Assigning operators to bottles: the change and its audit row together."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.db import transaction

from botbottle.models import Bottle
from supervise import audit
from supervise.models import Assignment


def assign(bottle: Bottle, operator: User, *, author: str) -> Assignment:
    """Assign an operator: from now on only assigned operators, and those who may assign, decide for the
    bottle.
    """
    with transaction.atomic():
        made, is_new = Assignment.objects.get_or_create(
            bottle=bottle, operator=operator, defaults={"assigned_by": author}
        )
        if is_new:
            _record("operator assigned", made, author)
    return made


def release(assignment: Assignment, *, author: str) -> None:
    """Remove an assignment. Without any, every operator decides for the bottle again."""
    with transaction.atomic():
        _record("operator released", assignment, author)
        assignment.delete()


def _record(action: str, assignment: Assignment, author: str) -> None:
    audit.append(
        action,
        actor_name=author,
        bottle_slug=assignment.bottle.slug,
        details={"operator": assignment.operator.get_username()},
    )
