"""Keys for scripts and chat bots, which act as a user. Shown once, and stored only as a digest."""

from __future__ import annotations

import hmac
import secrets

from django.contrib.auth.models import User
from django.db import transaction
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from botbottle.models import digest_token
from supervise import audit
from supervise.errors import SuperviseError
from supervise.models import ApiKey

PREFIX = "bbk_"  # a marker, so that a leaked key can be recognised
REFUSAL = "This API key is not valid. An operator makes a new one with 'manage.py apikey create'."


class NoSuchKey(SuperviseError):
    code = "no_such_key"


def create(user: User, name: str, *, author: str | None = None) -> str:
    """Create a key that acts as `user`. The returned text is not stored."""
    key = PREFIX + secrets.token_urlsafe(32)
    with transaction.atomic():
        row = ApiKey.objects.create(user=user, name=name, digest=digest_token(key))
        _record("api key created", row, author)
    return key


def delete(key_id: int, *, author: str) -> ApiKey:
    """Delete a key, which stops working with the commit. Raises NoSuchKey."""
    with transaction.atomic():
        row = ApiKey.objects.select_related("user").filter(pk=key_id).first()
        if row is None:
            raise NoSuchKey(f"There is no API key {key_id}. 'apikey list' shows the ones there are.")
        _record("api key deleted", row, author)
        row.delete()
    return row


class ApiKeyAuthentication(BaseAuthentication):
    """`Authorization: Bearer bbk_…` on the operator plane. Requests without that header use the session."""

    def authenticate(self, request: Request) -> tuple[User, ApiKey] | None:
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        found = _find(key.strip())
        if found is None or not found.user.is_active:
            raise AuthenticationFailed(REFUSAL)
        return found.user, found

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="bot-bottle operator API"'


def _find(key: str) -> ApiKey | None:
    digest = digest_token(key)
    row = ApiKey.objects.select_related("user").filter(digest=digest).first()
    return row if row is not None and hmac.compare_digest(row.digest, digest) else None


def _record(action: str, row: ApiKey, author: str | None) -> None:
    username = row.user.get_username()
    audit.append(action, actor_name=author or username, details={"user": username, "name": row.name})
