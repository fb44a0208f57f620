"""Sends messages to receivers: at least once each, with retries, and without delaying anything else.

Trust boundary: operators choose where messages go. Redirects are not followed, an answer's body is not kept,
and no receiver can delay another one, or a decision.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from datetime import datetime, timedelta
from pathlib import Path

from cryptography.fernet import InvalidToken
from django.conf import settings
from django.db import connections
from django.db.models import F, Min, Q
from django.utils import timezone

from botbottle.leader_thread import LeaderThread
from egress import secrets
from supervise.models import Delivery, Webhook
from supervise.webhooks.http import Answer, post
from supervise.webhooks.outbox import spool
from supervise.webhooks.payloads import body_of, headers_of

log = logging.getLogger(__name__)
MOST_AT_ONCE = 8  # receivers
MOST_IN_A_TURN = 20  # messages to one receiver, before others have their turn
FIRST_RETRY = timedelta(seconds=5)
LONGEST_RETRY = timedelta(hours=1)
MOST_ATTEMPTS = 60
OLDEST = timedelta(days=3)
LOG_KEPT = timedelta(days=14)
PRUNE_SECONDS = 600.0
CLAIMED = timedelta(minutes=2)  # longer than an attempt takes: after that, its sender has died
State = Delivery.State


class Sender(LeaderThread):
    """Sends for all workers of a home."""

    name = "webhooks"

    def __init__(self) -> None:
        super().__init__()
        self._busy: dict[int, threading.Thread] = {}
        self._pruned_at = 0.0

    def work(self) -> bool:
        self.round()
        return False

    def round(self) -> None:
        """Start one thread for each receiver with something due: a slow one delays only itself."""
        spool()
        self._busy = {pk: thread for pk, thread in self._busy.items() if thread.is_alive()}
        for pk in _due_receivers():
            if pk not in self._busy and len(self._busy) < MOST_AT_ONCE:
                self._busy[pk] = threading.Thread(target=_deliver_apart, args=[pk], daemon=True)
                self._busy[pk].start()
        if time.monotonic() > self._pruned_at + PRUNE_SECONDS:
            self._pruned_at = time.monotonic()
            prune()

    def wait(self, seconds: float) -> None:
        """Wait for the threads of the last round."""
        for thread in self._busy.values():
            thread.join(seconds)


def deliver(webhook_id: int) -> None:
    """Send due messages, until none is left, the receiver is in trouble, or its turn is over."""
    for _ in range(MOST_IN_A_TURN):
        delivery = _claim(webhook_id)
        if delivery is None:
            return
        answer = _attempt(delivery)
        if answer.is_success:
            _delivered(delivery, answer)
        else:
            _failed(delivery, answer)
            if answer.is_trouble:
                return


def prune() -> None:
    """Delete old deliveries, and give up those that waited for days."""
    now = timezone.now()
    Delivery.objects.filter(finished_at__lt=now - LOG_KEPT).delete()
    overdue = Delivery.objects.filter(state=State.WAITING, created_at__lt=now - OLDEST, attempts=0)
    overdue.update(state=State.GIVEN_UP, finished_at=now, last_error="Too old: nobody took it for days.")


def link_to(facts: dict[str, object]) -> str:
    """The page that the message is about."""
    base = settings.CONSOLE_URL or f"http://127.0.0.1:{_console_port()}"
    if facts.get("proposal"):
        return f"{base}/proposals/{facts['proposal']}/"
    return f"{base}/bottles/{facts['bottle']}/" if facts.get("bottle") else f"{base}/"


def _console_port() -> int:
    if settings.CONSOLE_PORT:
        return int(settings.CONSOLE_PORT)
    try:
        published = json.loads((Path(settings.BOTTLE_HOME) / ".http.port").read_text())
    except (OSError, ValueError):
        return 0
    return int(published["console"])


def _due_receivers() -> list[int]:
    due = Q(deliveries__state=State.WAITING, deliveries__next_attempt_at__lte=timezone.now())
    waiting = Webhook.objects.filter(is_active=True).annotate(
        since=Min("deliveries__next_attempt_at", filter=due)
    )
    return list(waiting.exclude(since=None).order_by("since").values_list("pk", flat=True))


def _deliver_apart(webhook_id: int) -> None:
    try:
        deliver(webhook_id)
    except Exception:
        log.exception("Sending to webhook %s failed; trying again in a moment.", webhook_id)
    finally:
        connections.close_all()


def _claim(webhook_id: int) -> Delivery | None:
    now = timezone.now()
    waiting = Delivery.objects.filter(
        webhook=webhook_id, webhook__is_active=True, state=State.WAITING, next_attempt_at__lte=now
    )
    delivery = waiting.select_related("webhook").order_by("next_attempt_at", "pk").first()
    if delivery is None:
        return None
    claimed = Delivery.objects.filter(pk=delivery.pk, state=State.WAITING, attempts=delivery.attempts)
    if claimed.update(attempts=F("attempts") + 1, next_attempt_at=now + CLAIMED) != 1:
        return None  # another home's sender was first
    delivery.attempts += 1
    return delivery


def _attempt(delivery: Delivery) -> Answer:
    webhook = delivery.webhook
    try:
        secret = secrets.unseal(webhook.sealed) if webhook.sealed else ""
    except InvalidToken:
        return Answer(None, "Its secret was encrypted with another key. Set it again.")
    body = body_of(webhook.kind, delivery.facts, link_to(delivery.facts))
    headers = headers_of(
        body, secret=secret, delivery=str(delivery.pk), event=delivery.event, timestamp=int(time.time())
    )
    return post(webhook.url, body, headers)


def _delivered(delivery: Delivery, answer: Answer) -> None:
    now = timezone.now()
    Delivery.objects.filter(pk=delivery.pk).update(
        state=State.DELIVERED, response_code=answer.code, last_error="", finished_at=now
    )
    # It answers again: deliveries that waited only because it did not need not wait any longer.
    in_trouble = Q(response_code=None) | Q(response_code__gte=500) | Q(attempts=0)
    waiting = Delivery.objects.filter(in_trouble, webhook=delivery.webhook_id, state=State.WAITING)
    waiting.filter(next_attempt_at__gt=now).update(next_attempt_at=now)


def _failed(delivery: Delivery, answer: Answer) -> None:
    now = timezone.now()
    row = Delivery.objects.filter(pk=delivery.pk)
    if delivery.attempts >= MOST_ATTEMPTS or now - delivery.created_at > OLDEST:
        row.update(
            state=State.GIVEN_UP, response_code=answer.code, last_error=answer.problem, finished_at=now
        )
        log.error("Webhook %s: a message was given up: %s", delivery.webhook.name, answer.problem)
        return
    later = _next_attempt(now, delivery.attempts)
    row.update(next_attempt_at=later, response_code=answer.code, last_error=answer.problem)
    if answer.is_trouble:  # the others would fail too: they wait with it, without an attempt
        others = Delivery.objects.filter(webhook=delivery.webhook_id, state=State.WAITING)
        others.filter(next_attempt_at__lt=later).update(next_attempt_at=later)


def _next_attempt(now: datetime, attempts: int) -> datetime:
    """A growing pause, varied so that retries do not all fall together."""
    wait = min(LONGEST_RETRY, FIRST_RETRY * (1 << min(attempts - 1, 20)))
    return now + wait * random.uniform(0.8, 1.2)  # noqa: S311 - spreads load, guards nothing
