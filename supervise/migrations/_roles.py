"""The three roles as Django groups: viewers look, operators decide, admins also say who may.

The first migration grants them; afterwards the groups are the administrators' to change. Later migrations that
add a model grant its permissions themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

VIEWER, OPERATOR, ADMIN = "viewer", "operator", "admin"
Verbs = dict[str, dict[str, tuple[str, ...]]]  # by app and model

_LOOK: Verbs = {
    "botbottle": {"bottle": ("view",)},
    "egress": {
        "routetableversion": ("view",),
        "publication": ("view",),
        "trafficrecord": ("view",),
        "proxyevent": ("view",),
    },
    "supervise": {
        "proposal": ("view",),
        "decision": ("view",),
        "standingrefusal": ("view",),
        "managedserver": ("view",),
        "auditevent": ("view",),
    },
}
_DECIDE: Verbs = {"botbottle": {"bottle": ("run",)}, "supervise": {"proposal": ("decide",)}}
_ADMINISTER: Verbs = {
    "supervise": {
        "assignment": ("view", "add", "delete"),
        "webhook": ("view", "add", "change", "delete"),
        "delivery": ("view",),
        "apikey": ("view", "delete"),
        "loginfailure": ("view", "delete"),
    },
    "egress": {"secret": ("view", "add", "change", "delete")},
    "auth": {"user": ("view", "add", "change", "delete"), "group": ("view",)},
}
ROLES = {
    VIEWER: (_LOOK,),
    OPERATOR: (_LOOK, _DECIDE),
    ADMIN: (_LOOK, _DECIDE, _ADMINISTER),
}
# What Django calls those permissions that are not its own.
_NAMES = {
    "decide_proposal": "Can approve, modify and reject proposals",
    "run_bottle": "Can start and stop bottles",
}


def permissions_of(role: str) -> Iterator[tuple[str, str, str]]:
    """App, model and codename of each."""
    for part in ROLES[role]:
        for app, models in part.items():
            for model, verbs in models.items():
                yield from ((app, model, f"{verb}_{model}") for verb in verbs)


def grant(apps: Any) -> None:
    """Make the groups, and give them what they lack. Takes nothing away.

    Django makes permissions only after all migrations have run, so those that are needed are made here.
    """
    kinds = apps.get_model("contenttypes", "ContentType").objects
    permissions = apps.get_model("auth", "Permission").objects
    groups = apps.get_model("auth", "Group").objects
    for role in ROLES:
        group, _ = groups.get_or_create(name=role)
        for app, model, codename in permissions_of(role):
            kind, _ = kinds.get_or_create(app_label=app, model=model)
            name = _NAMES.get(codename, f"Can {codename.partition('_')[0]} {_words(apps, app, model)}")
            permission, _ = permissions.get_or_create(
                content_type=kind, codename=codename, defaults={"name": name}
            )
            group.permissions.add(permission)


def _words(apps: Any, app: str, model: str) -> str:
    try:
        return str(apps.get_model(app, model)._meta.verbose_name_raw)
    except LookupError:  # a model of a later migration
        return model
