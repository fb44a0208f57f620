"""Sets and removes webhooks, and sends tests: the change and its audit row together."""

from __future__ import annotations

from urllib.parse import urlsplit

from django.db import transaction
from django.utils import timezone

from egress import secrets
from supervise import audit
from supervise.models import AuditEvent, Delivery, Webhook
from supervise.webhooks.http import check_url
from supervise.webhooks.outbox import facts_of_test


def put(webhook: Webhook, *, secret: str = "", author: str) -> Webhook:
    """Save a webhook; an empty secret keeps the present one. Raises BadReceiver.

    It gets events from now on: one that was switched off gets none from the time between.
    """
    check_url(webhook.url)
    if secret:
        webhook.sealed = secrets.seal(secret)
    webhook.updated_by = author
    with transaction.atomic():
        present = Webhook.objects.select_for_update().filter(pk=webhook.pk).first()
        recorded = _record("webhook set", webhook, author)
        was_active = present is not None and present.is_active
        webhook.read_seq = present.read_seq if present is not None and was_active else recorded.seq
        webhook.save()
    return webhook


def remove(webhook: Webhook, *, author: str) -> None:
    """Remove a webhook. Waiting deliveries are not sent any more."""
    with transaction.atomic():
        _record("webhook removed", webhook, author)
        webhook.delete()


def send_test(webhook: Webhook) -> Delivery:
    return Delivery.objects.create(
        webhook=webhook, event=Webhook.Event.TEST, facts=facts_of_test(), next_attempt_at=timezone.now()
    )


def send_again(delivery: Delivery) -> bool:
    """Retry a delivery that was given up. Returns False if it was not."""
    given_up = Delivery.objects.filter(pk=delivery.pk, state=Delivery.State.GIVEN_UP)
    now = timezone.now()
    return bool(
        given_up.update(
            state=Delivery.State.WAITING, attempts=0, created_at=now, next_attempt_at=now, finished_at=None
        )
    )


def _record(action: str, webhook: Webhook, author: str) -> AuditEvent:
    """The URL's path may be a credential: only its host is recorded."""
    return audit.append(
        action,
        actor_name=author,
        details={
            "name": webhook.name,
            "kind": webhook.kind,
            "host": urlsplit(webhook.url).hostname or "",
            "events": webhook.events,
            "active": webhook.is_active,
        },
    )
