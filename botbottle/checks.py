"""Misconfigurations that would lose something silently, refused at start with what to do."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, register, run_checks

from .environment import BadSetting


@register()
def shared_state_for_many_workers(**_: Any) -> list[CheckMessage]:
    if settings.WEB_WORKERS > 1 and not settings.REDIS_URL:
        return [
            Error(
                "The in-memory channel layer cannot wake a call that waits in another worker.",
                hint="Set REDIS_URL, or WEB_WORKERS=1.",
                id="botbottle.E001",
            )
        ]
    return []


def refuse_misconfiguration() -> None:
    """Raise BadSetting with one sentence for the first system check that found an error."""
    for message in run_checks():
        if message.is_serious():
            raise BadSetting(f"{message.msg} {message.hint or ''} ({message.id})")
