"""Sets and removes operators' secrets: the change and its audit row together. Neither contains the value."""

from __future__ import annotations

from django.db import transaction

from egress import secrets as store
from egress.models import Secret
from supervise import audit


def put(name: str, value: str, *, author: str) -> Secret:
    with transaction.atomic():
        secret = store.put(name, value, author=author)
        audit.append("secret set", actor_name=author, details={"name": name})
    return secret


def remove(secret: Secret, *, author: str) -> None:
    with transaction.atomic():
        audit.append("secret removed", actor_name=author, details={"name": secret.name})
        store.remove(secret)
