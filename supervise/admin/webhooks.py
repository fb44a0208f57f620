"""Webhooks in the admin: to set, with a secret that is never shown; to test; and the log of deliveries."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from django import forms
from django.contrib import admin, messages
from django.db.models import Count, Model, Q, QuerySet
from django.http import HttpRequest

from botbottle.admin import ReadOnlyAdmin, hostile_json
from botbottle.core import sanitize
from supervise.models import Delivery, Webhook
from supervise.webhooks import manage
from supervise.webhooks.http import BadReceiver, check_url

EVENTS = [choice for choice in Webhook.Event.choices if choice[0] != Webhook.Event.TEST]
SHORTEST_SECRET = 16


class WebhookForm(forms.ModelForm):  # type: ignore[type-arg]
    events = forms.MultipleChoiceField(choices=EVENTS, widget=forms.CheckboxSelectMultiple)
    secret = forms.CharField(
        required=False,
        strip=False,
        min_length=SHORTEST_SECRET,
        max_length=1000,
        widget=forms.PasswordInput(render_value=False, attrs={"autocomplete": "off"}),
        help_text="Signs every message. Leave it empty to keep the present one. It is never shown again.",
    )

    class Meta:
        model = Webhook
        fields = ["name", "url", "kind", "events", "is_active"]
        labels = {"url": "URL"}

    def clean_url(self) -> str:
        url = str(self.cleaned_data["url"])
        try:
            check_url(url)
        except BadReceiver as error:
            raise forms.ValidationError(str(error)) from error
        return url

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        unsigned = not cleaned.get("secret") and not self.instance.sealed
        if cleaned.get("kind") == Webhook.Kind.GENERIC and unsigned and "secret" not in self.errors:
            self.add_error("secret", "A receiver of our own JSON needs a secret, to know that it was us.")
        return cleaned


@admin.register(Webhook)
class WebhookAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    when_empty = (
        "No webhooks yet. A webhook notifies your chat or program of what agents ask and operators decide."
    )
    form = WebhookForm
    list_display = ["name", "kind", "host", "is_active", "waiting", "given_up", "updated_by", "updated_at"]
    actions = ["send_a_test"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Webhook]:
        states = Delivery.State
        webhooks: QuerySet[Webhook] = super().get_queryset(request)
        return webhooks.annotate(
            n_waiting=Count("deliveries", filter=Q(deliveries__state=states.WAITING)),
            n_given_up=Count("deliveries", filter=Q(deliveries__state=states.GIVEN_UP)),
        )

    def get_fields(self, request: HttpRequest, obj: Webhook | None = None) -> Any:
        """The URL may be a credential: users who may not change it do not see it."""
        may_set = self.has_change_permission(request, obj) if obj else self.has_add_permission(request)
        if may_set:
            return ["name", "url", "kind", "events", "secret", "is_active"]
        return ["name", "kind", "is_active"]

    @admin.display(description="Receiver")
    def host(self, webhook: Webhook) -> str:
        return sanitize.make_visible(urlsplit(webhook.url).hostname or "")

    @admin.display(description="Waiting")
    def waiting(self, webhook: Any) -> int:
        return int(webhook.n_waiting)

    @admin.display(description="Given up")
    def given_up(self, webhook: Any) -> int:
        return int(webhook.n_given_up)

    @admin.action(description="Send a test", permissions=["change"])
    def send_a_test(self, request: HttpRequest, queryset: QuerySet[Webhook]) -> None:
        for webhook in queryset:
            manage.send_test(webhook)
            state = "" if webhook.is_active else " once it is active"
            text = f"A test is sent to {webhook.name}{state}. The deliveries show how it went."
            self.message_user(request, text, messages.SUCCESS)

    def save_model(self, request: HttpRequest, obj: Webhook, form: WebhookForm, change: bool) -> None:
        manage.put(obj, secret=form.cleaned_data["secret"], author=request.user.get_username())

    def delete_model(self, request: HttpRequest, obj: Webhook) -> None:
        manage.remove(obj, author=request.user.get_username())

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Webhook]) -> None:
        for webhook in queryset:
            manage.remove(webhook, author=request.user.get_username())

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Its deliveries are deleted with it, which needs no permission of its own."""
        shown, counts, _, protected = super().get_deleted_objects(objs, request)
        return shown, counts, set(), protected


@admin.register(Delivery)
class DeliveryAdmin(ReadOnlyAdmin):
    when_empty = (
        "No messages yet. Each that is sent to a webhook is listed here for a while, with how it went."
    )
    list_display = [
        "created_at", "webhook", "event", "state", "attempts", "response_code", "shown_error", "finished_at",
    ]  # fmt: skip
    list_select_related = ["webhook"]
    list_filter = ["state", "event", "webhook", "created_at"]
    fields = [
        "webhook", "event", "seq", "state", "attempts", "next_attempt_at", "response_code", "shown_error",
        "created_at", "finished_at", "shown_facts",
    ]  # fmt: skip
    actions = ["send_again"]

    def has_resend_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("supervise.change_webhook")

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    @admin.display(description="Last error")
    def shown_error(self, delivery: Delivery) -> str:
        return sanitize.make_visible(delivery.last_error)

    @admin.display(description="Contents")
    def shown_facts(self, delivery: Delivery) -> str:
        return hostile_json(delivery.facts)

    @admin.action(description="Send again what was given up", permissions=["resend"])
    def send_again(self, request: HttpRequest, queryset: QuerySet[Delivery]) -> None:
        again = sum(manage.send_again(delivery) for delivery in queryset)
        self.message_user(request, f"{again} of {len(queryset)} are tried again.", messages.SUCCESS)
