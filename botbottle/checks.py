"""Misconfigurations that would lose something silently, refused at start with what to do."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, register



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
