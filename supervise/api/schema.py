"""How the operator API describes itself. Loaded when somebody asks for the schema, and not before.

`describe` is drf-spectacular's hook before it makes a schema. It adds what views and serializers do not say.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_field
from rest_framework import serializers

from supervise.api import serializers as api_serializers
from supervise.api import views as api
from supervise.api.serializers import ErrorSerializer, ProposalSerializer, RoutesSerializer
from supervise.models import Proposal
from supervise.proposals.kind import names


class ApiKeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """How the schema describes API keys; drf-spectacular finds it by its base class."""

    target_class = "supervise.access.api_keys.ApiKeyAuthentication"
    name = "apiKey"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "bearerFormat": "bbk_…"}


def describe(endpoints: list[Any]) -> list[Any]:
    _describe_once()
    return endpoints


@cache
def _describe_once() -> None:
    _describe_fields()
    bottle = OpenApiParameter("bottle", str, description="The bottle's slug.")
    tool = OpenApiParameter("tool", str, enum=list(names()))
    status = OpenApiParameter("status", str, enum=Proposal.Status.values)
    for listing in (api.ProposalList, api.History):
        extend_schema(parameters=[status, bottle, tool])(listing.get)
    extend_schema(responses={200: ProposalSerializer, 404: ErrorSerializer})(api.ProposalDetail.get)
    extend_schema(responses={200: RoutesSerializer, 404: ErrorSerializer})(api.BottleRoutes.get)
    refusals = dict.fromkeys((400, 401, 403, 404, 409), ErrorSerializer)
    for view in (api.Approve, api.Modify):
        answers = {200: ProposalSerializer, 202: ProposalSerializer, **refusals}
        extend_schema(request=view.body, responses=answers)(view)
    extend_schema(request=api.Reject.body, responses={200: ProposalSerializer, **refusals})(api.Reject)


def _describe_fields() -> None:
    fields: dict[Any, Any] = {
        ProposalSerializer.get_approvals: serializers.ListField(child=serializers.CharField()),
        ProposalSerializer.get_review: api_serializers.ReviewSerializer(allow_null=True),
        ProposalSerializer.get_decision: api_serializers.DecisionSerializer(allow_null=True),
    }
    for method, shape in fields.items():
        extend_schema_field(shape)(method)
