"""Proposals, decisions and the audit record in the admin, read-only; secrets, which can be set but not read.

Trust boundary: everything an agent wrote is shown through `sanitize`; every change goes through an action.
"""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from botbottle.admin import HistoryAdmin, ReadOnlyAdmin, hostile, hostile_json
from botbottle.core import sanitize
from egress.models import Secret
from egress.secrets import is_readable, valid_value
from supervise import audit
from supervise.access import api_keys, secrets
from supervise.access.permissions import may_decide
from supervise.console.cards import summary_of
from supervise.errors import SuperviseError
from supervise.models import ApiKey, AuditEvent, Decision, Proposal
from supervise.proposals import decisions, queries
from supervise.proposals.kind import kind_of, names

MOST_AT_ONCE = 200


class ToolFilter(admin.SimpleListFilter):
    title = "tool"
    parameter_name = "tool"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in names()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Proposal]) -> QuerySet[Proposal]:
        return queryset.filter(tool=self.value()) if self.value() else queryset


@admin.register(Proposal)
class ProposalAdmin(HistoryAdmin):
    when_empty = "No proposals yet. Everything that agents ask for is listed here, granted or not."
    list_display = ["short_id", "status", "bottle", "ask", "created_at"]
    list_select_related = ["bottle"]
    list_filter = ["status", ToolFilter, "created_at"]
    search_fields = ["id", "bottle__slug", "justification"]
    exact_id = "pk"
    fields = [
        "id",
        "bottle",
        "tool",
        "status",
        "ask",
        "shown_payload",
        "shown_justification",
        "base_version",
        "joined",
        "digest",
        "created_at",
    ]
    actions = ["reject_selected"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Proposal]:
        return super().get_queryset(request).defer("justification")  # the list does not show it

    def has_decide_permission(self, request: HttpRequest) -> bool:
        return may_decide(request.user)

    @admin.display(description="Proposal", ordering="id")
    def short_id(self, proposal: Proposal) -> str:
        return str(proposal.pk)[:8]

    @admin.display(description="Ask")
    def ask(self, proposal: Proposal) -> str:
        return sanitize.one_line(summary_of(proposal), 160)

    @admin.display(description="Payload (from the agent, unverified)")
    def shown_payload(self, proposal: Proposal) -> str:
        text = kind_of(proposal).asked_text(proposal.payload)
        return hostile_json(proposal.payload) if text is None else hostile(text)

    @admin.display(description="Justification (from the agent, unverified)")
    def shown_justification(self, proposal: Proposal) -> str:
        return hostile(proposal.justification)

    @admin.action(description="Reject selected…", permissions=["decide"])
    def reject_selected(self, request: HttpRequest, queryset: QuerySet[Proposal]) -> HttpResponse | None:
        """Lists every proposal and asks for the reason; only the second form rejects."""
        note = request.POST.get("note", "").replace("\r\n", "\n")
        if "confirmed" not in request.POST or not note.strip():
            return self._confirm(request, queryset, missing="confirmed" in request.POST)
        for proposal in queryset[:MOST_AT_ONCE]:
            seen = request.POST.get(f"seen-{proposal.pk}", "")
            self._reject(request, proposal, seen, note)
        return None

    def _reject(self, request: HttpRequest, proposal: Proposal, seen: str, note: str) -> None:
        name = f"{str(proposal.pk)[:8]} ({sanitize.one_line(summary_of(proposal), 80)})"
        try:
            decisions.reject(proposal.pk, actor=request.user, seen_digest=seen, note=note)  # type: ignore[arg-type]
        except SuperviseError as error:
            self.message_user(request, f"Not rejected: {name}. {error.message}", messages.ERROR)
        else:
            self.message_user(request, f"Rejected: {name}.", messages.SUCCESS)

    def _confirm(self, request: HttpRequest, queryset: QuerySet[Proposal], *, missing: bool) -> HttpResponse:
        pending = queryset.filter(status=Proposal.Status.PENDING).select_related("bottle")
        reviews = queries.reviews_of(list(pending[:MOST_AT_ONCE]))
        context = {
            **self.admin_site.each_context(request),
            "title": "Reject the selected proposals",
            "opts": self.opts,
            "reviews": [(review, summary_of(review.proposal)) for review in reviews],
            "decided": queryset.exclude(status=Proposal.Status.PENDING).count(),
            "left_out": max(0, pending.count() - MOST_AT_ONCE),
            "is_reason_missing": missing,
            "checkbox_name": ACTION_CHECKBOX_NAME,
        }
        return TemplateResponse(request, "admin/supervise/reject_selected.html", context)


@admin.register(Decision)
class DecisionAdmin(HistoryAdmin):
    when_empty = "No decisions yet. Every answer of an operator is listed here."
    list_display = [
        "proposal",
        "status",
        "actor_name",
        "applied",
        "live_version",
        "shown_notes",
        "created_at",
    ]
    list_select_related = ["proposal"]
    list_filter = ["status", "applied", "created_at"]
    search_fields = ["proposal__id", "bottle__slug", "actor_name", "notes"]
    exact_id = "proposal"
    fields = [
        "proposal",
        "status",
        "actor_name",
        "shown_notes",
        "shown_payload",
        "shown_granted",
        "shown_not_granted",
        "table_version",
        "applied",
        "apply_error",
        "live_version",
        "live_at",
        "seen_digest",
        "created_at",
    ]

    @admin.display(description="Notes")
    def shown_notes(self, decision: Decision) -> str:
        return sanitize.make_visible(decision.notes)

    @admin.display(description="Final payload")
    def shown_payload(self, decision: Decision) -> str:
        return hostile_json(decision.final_payload)

    @admin.display(description="Granted")
    def shown_granted(self, decision: Decision) -> str:
        return hostile_json(decision.granted)

    @admin.display(description="Not granted")
    def shown_not_granted(self, decision: Decision) -> str:
        return hostile_json(decision.not_granted)


class ActionFilter(admin.SimpleListFilter):
    title = "action"
    parameter_name = "action"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(action, action) for action in audit.actions()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[AuditEvent]) -> QuerySet[AuditEvent]:
        return queryset.filter(action=self.value()) if self.value() else queryset


@admin.register(AuditEvent)
class AuditEventAdmin(HistoryAdmin):
    when_empty = (
        "Nothing happened yet. Every change is recorded here; 'manage.py verify_audit' checks the record."
    )
    list_display = ["seq", "at", "action", "actor_name", "bottle_slug", "proposal_id"]
    list_filter = [ActionFilter]
    search_fields = ["actor_name", "bottle_slug", "proposal_id"]
    exact_id = "proposal_id"
    fields = [
        "seq",
        "at",
        "action",
        "actor_name",
        "bottle_slug",
        "proposal_id",
        "shown_details",
        "previous_hash",
        "hash",
    ]

    @admin.display(description="Details")
    def shown_details(self, event: AuditEvent) -> str:
        return hostile_json(event.details)


@admin.register(ApiKey)
class ApiKeyAdmin(ReadOnlyAdmin):
    """Keys are made with a command, which prints them once; here they are only seen and deleted."""

    when_empty = (
        "No keys yet. Scripts use the API with one: 'manage.py apikey create --user NAME --name LABEL'."
    )
    list_display = ["name", "user", "created_at"]
    list_select_related = ["user"]
    search_fields = ["name", "user__username"]
    fields = ["name", "user", "created_at"]

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return admin.ModelAdmin.has_delete_permission(self, request, obj)

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        api_keys.delete(obj.pk, author=request.user.get_username())

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        for key in queryset:
            api_keys.delete(key.pk, author=request.user.get_username())


class SecretForm(forms.ModelForm):  # type: ignore[type-arg]
    """Write-only: the value is never shown again, not even to the user who set it."""

    value = forms.CharField(
        strip=False,
        max_length=16384,
        validators=[valid_value],
        widget=forms.PasswordInput(render_value=False, attrs={"autocomplete": "off"}),
        help_text="Replaces the present value. It is never shown again.",
    )

    class Meta:
        model = Secret
        fields = ["name"]
        help_texts = {"name": "What a route's token_ref says, such as GITHUB_TOKEN."}


@admin.register(Secret)
class SecretAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    when_empty = (
        "No secrets yet. A route names one as its credential, and the proxy adds it: no bottle ever gets it."
    )
    form = SecretForm
    list_display = ["name", "usable", "updated_by", "updated_at"]

    def get_fields(self, request: HttpRequest, obj: Secret | None = None) -> Any:
        """Who may not change it sees its name and no field for a value."""
        may_set = self.has_change_permission(request, obj) if obj else self.has_add_permission(request)
        return ["name", "value"] if may_set else ["name"]

    def get_readonly_fields(self, request: HttpRequest, obj: Secret | None = None) -> list[str]:
        return ["name"] if obj else []

    @admin.display(description="Usable")
    def usable(self, secret: Secret) -> str:
        return "yes" if is_readable(secret) else "no: it was encrypted with another key. Set it again."

    def save_model(self, request: HttpRequest, obj: Secret, form: SecretForm, change: bool) -> None:
        obj.pk = secrets.put(obj.name, form.cleaned_data["value"], author=request.user.get_username()).pk

    def delete_model(self, request: HttpRequest, obj: Secret) -> None:
        secrets.remove(obj, author=request.user.get_username())

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Secret]) -> None:
        for secret in queryset:
            secrets.remove(secret, author=request.user.get_username())
