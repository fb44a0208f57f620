"""How the operator API describes itself. Loaded when somebody asks for the schema, and not before.

`describe` is drf-spectacular's hook before it makes a schema; it adds to the views and shapes what cannot be
found out from them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_field
from rest_framework import serializers

from supervise.api import serializers as api_shapes
from supervise.api import views as api
from supervise.api.serializers import ErrorShape, ProposalShape, RoutesShape
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
    extend_schema(responses={200: ProposalShape, 404: ErrorShape})(api.ProposalDetail.get)
    extend_schema(responses={200: RoutesShape, 404: ErrorShape})(api.BottleRoutes.get)
    refusals = dict.fromkeys((400, 401, 403, 404, 409), ErrorShape)
    for view in (api.Approve, api.Modify):
        answers = {200: ProposalShape, 202: ProposalShape, **refusals}
        extend_schema(request=view.body, responses=answers)(view)
    extend_schema(request=api.Reject.body, responses={200: ProposalShape, **refusals})(api.Reject)


def _describe_fields() -> None:
    fields: dict[Any, Any] = {
        ProposalShape.get_approvals: serializers.ListField(child=serializers.CharField()),
        ProposalShape.get_review: api_shapes.ReviewShape(allow_null=True),
        ProposalShape.get_decision: api_shapes.DecisionShape(allow_null=True),
    }
    for method, shape in fields.items():
        extend_schema_field(shape)(method)
