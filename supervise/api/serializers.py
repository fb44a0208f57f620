"""The serializers of the operator API: what it reads and what it writes.

Agents' text goes out as it was sent: what makes it inert is the renderer in `supervise.api.views`.
"""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from botbottle.models import Bottle
from supervise.models import Decision, Proposal
from supervise.proposals import queries, quorum
from supervise.proposals.outcomes import outcome_of
from supervise.proposals.risk import Level


class RiskSerializer(serializers.Serializer[Any]):
    level = serializers.ChoiceField(source="level.word", choices=["low", "medium", "high"])
    reasons = serializers.ListField(child=serializers.CharField())


class ReviewSerializer(serializers.Serializer[Any]):
    """The change that an approval would make now. `seen_digest` goes back with the decision."""

    table_version = serializers.IntegerField()
    before = serializers.CharField()
    after = serializers.CharField()
    effects = serializers.ListField(child=serializers.CharField())
    warnings = serializers.ListField(child=serializers.CharField())
    notes = serializers.ListField(child=serializers.CharField(), help_text="What could not be found out.")
    risk = RiskSerializer()
    seen_digest = serializers.CharField()


class DecisionSerializer(serializers.ModelSerializer[Decision]):
    decided_by = serializers.CharField(source="actor_name")
    decided_at = serializers.DateTimeField(source="created_at")
    table_version = serializers.IntegerField(source="table_version.version", default=None, allow_null=True)

    class Meta:
        model = Decision
        fields = [
            "status",
            "decided_by",
            "decided_at",
            "notes",
            "final_payload",
            "granted",
            "not_granted",
            "table_version",
            "applied",
            "apply_error",
            "live_version",
            "live_at",
        ]


class ProposalLineSerializer(serializers.ModelSerializer[Proposal]):
    """One proposal in a list: enough to choose by; the rest is one GET away."""

    bottle = serializers.CharField(source="bottle.slug")
    host = serializers.CharField(allow_null=True)
    justification_start = serializers.CharField()

    class Meta:
        model = Proposal
        fields = ["id", "bottle", "tool", "status", "host", "justification_start", "joined", "created_at"]


class ProposalSerializer(serializers.ModelSerializer[Proposal]):
    """Everything about one proposal. `review` is null once it is decided, `decision` until then."""

    bottle = serializers.CharField(source="bottle.slug")
    approvals = serializers.SerializerMethodField()
    approvals_needed = serializers.SerializerMethodField()
    review = serializers.SerializerMethodField()
    decision = serializers.SerializerMethodField()
    agent_is_told = serializers.SerializerMethodField()

    class Meta:
        model = Proposal
        fields = [
            "id",
            "bottle",
            "tool",
            "status",
            "payload",
            "justification",
            "joined",
            "base_version",
            "created_at",
            "approvals",
            "approvals_needed",
            "review",
            "decision",
            "agent_is_told",
        ]

    def get_approvals(self, proposal: Proposal) -> list[str]:
        return [approval.actor.get_username() for approval in proposal.approvals.select_related("actor")]

    def to_representation(self, instance: Proposal) -> Any:
        # Made once, since two fields need it.
        self._review = queries.review_of(instance) if instance.is_pending else None
        return super().to_representation(instance)

    def get_approvals_needed(self, proposal: Proposal) -> int:
        """Of a decided proposal, as many as when it was filed."""
        level = self._review.risk.level if self._review else Level(proposal.risk_when_filed)
        return quorum.operators_needed(level)

    def get_review(self, proposal: Proposal) -> Any:
        return ReviewSerializer(self._review).data if self._review else None

    def get_decision(self, proposal: Proposal) -> Any:
        decision = queries.decision_of(proposal)
        return DecisionSerializer(decision).data if decision else None

    def get_agent_is_told(self, proposal: Proposal) -> str:
        return outcome_of(proposal, queries.decision_of(proposal)).explanation


class HistoryLineSerializer(DecisionSerializer):
    proposal_id = serializers.UUIDField()
    bottle = serializers.CharField(source="proposal.bottle.slug")
    tool = serializers.CharField(source="proposal.tool")

    class Meta(DecisionSerializer.Meta):
        fields = ["proposal_id", "bottle", "tool", *DecisionSerializer.Meta.fields]


class BottleSerializer(serializers.ModelSerializer[Bottle]):
    live_version = serializers.IntegerField(source="publication.live_version")
    problem = serializers.CharField(source="publication.problem")
    pending = serializers.IntegerField()

    class Meta:
        model = Bottle
        fields = ["slug", "backend", "state", "created_at", "live_version", "problem", "pending"]


class RouteSerializer(serializers.Serializer[Any]):
    host = serializers.CharField()
    path_allowlist = serializers.ListField(child=serializers.CharField())
    methods = serializers.ListField(child=serializers.CharField())
    lease = serializers.DictField(allow_null=True)
    auth_injected = serializers.BooleanField()


class RoutesSerializer(serializers.Serializer[Any]):
    version = serializers.IntegerField()
    source = serializers.ChoiceField(choices=["proxy", "last known"])  # type: ignore[assignment]
    routes = RouteSerializer(many=True)
    gate_hosts = serializers.ListField(child=serializers.CharField())


class ApproveBody(serializers.Serializer[Any]):
    seen_digest = serializers.CharField(
        max_length=64,
        help_text="`review.seen_digest` of the proposal as you saw it: nothing is decided unseen.",
        error_messages={"required": "required: GET the proposal and send back its review.seen_digest"},
    )
    note = serializers.CharField(
        max_length=10_000, allow_blank=True, default="", help_text="The agent reads it."
    )


class ModifyBody(ApproveBody):
    payload = serializers.DictField(help_text="What to grant instead, with the proposal payload's keys.")


class RejectBody(ApproveBody):
    note = serializers.CharField(
        max_length=10_000, allow_blank=True, default="", help_text="Why not. The agent reads it."
    )


class ErrorSerializer(serializers.Serializer[Any]):
    """Every refusal. A 409 adds who decided and when, or the proposal as it is now."""

    error = serializers.CharField()
    message = serializers.CharField()
    status = serializers.CharField(required=False)
    decided_by = serializers.CharField(required=False)
    decided_at = serializers.DateTimeField(required=False)
    proposal = ProposalSerializer(required=False)
