"""System checks for misconfigurations that would lose something silently. Each says what to do."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Error, register, run_checks
from django.db import connection

from botbottle.core.environment import BadSetting


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


@register()
def whole_identity_provider(**_: Any) -> list[CheckMessage]:
    """Refuse half a configuration of the identity provider: it would allow unintended sign-ins, or none."""
    needed = {
        "OIDC_ISSUER": settings.OIDC_ISSUER,
        "OIDC_CLIENT_ID": settings.OIDC_RP_CLIENT_ID,
        "OIDC_CLIENT_SECRET": settings.OIDC_RP_CLIENT_SECRET,
    }
    missing = [name for name, value in needed.items() if not value]
    is_wanted = len(missing) < len(needed) or bool(settings.OIDC_ROLE_GROUPS)
    if is_wanted and missing:
        hint = f"Set {' and '.join(missing)} too, or none of the OIDC variables."
        return [Error("The identity provider is only half configured.", hint=hint, id="botbottle.E002")]
    address = urlsplit(settings.OIDC_ISSUER)
    if is_wanted and address.scheme != "https" and address.hostname not in {"127.0.0.1", "::1", "localhost"}:
        hint = "OIDC_ISSUER must look like https://login.example.com/realms/main."
        return [Error("The identity provider must be reached over https.", hint=hint, id="botbottle.E003")]
    return []


def require_shared_secret_key() -> None:
    """Raises BadSetting on a machine that shares its database but has a signing key of its own.

    Sessions are signed: each such machine would sign operators out of the others.
    """
    if connection.vendor != "sqlite" and not settings.SECRET_KEY_IS_GIVEN:
        raise BadSetting(
            "This machine's signing key is its own, so operators would be signed out whenever another one"
            " answers. Set SECRET_KEY, or SECRET_KEY_FILE, to the same value on every machine; the first"
            " one's is in its BOTTLE_HOME/secret_key."
        )


def refuse_misconfiguration() -> None:
    """Raise BadSetting with one sentence for the first system check that found an error."""
    for message in run_checks():
        if message.is_serious():
            raise BadSetting(f"{message.msg} {message.hint or ''} ({message.id})")
