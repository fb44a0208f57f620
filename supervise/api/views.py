"""The operator API for scripts and chat bots, on the operator plane only.

Every decision goes through `supervise.proposals.decisions` with the digest of what the caller saw.
Answers are ASCII JSON in which nothing an agent wrote is active, in a browser or in a terminal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.http import HttpResponse
from rest_framework import exceptions, generics
from rest_framework.pagination import CursorPagination, PageNumberPagination
from rest_framework.permissions import BasePermission
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer
from rest_framework.views import APIView, exception_handler

from botbottle.core.sanitize import escape_html_json
from botbottle.database.faults import fault_of
from botbottle.models import Bottle
from botbottle.web.error_pages import api_unavailable
from supervise import errors
from supervise.access import permissions
from supervise.api.serializers import (
    ApproveBody,
    BottleSerializer,
    HistoryLineSerializer,
    ModifyBody,
    ProposalLineSerializer,
    ProposalSerializer,
    RejectBody,
    RoutesSerializer,
)
from supervise.bottles import records as bottles
from supervise.models import ApiKey, Approval, Decision, Proposal
from supervise.proposals import decisions, queries
from supervise.proposals.kind import names

log = logging.getLogger(__name__)


class InertJSONRenderer(JSONRenderer):
    ensure_ascii = True

    def render(self, data: Any, *args: Any, **kwargs: Any) -> bytes:
        text: bytes = super().render(data, *args, **kwargs)
        return escape_html_json(text.decode("ascii")).encode("ascii")


class MayView(BasePermission):
    message = "Looking at proposals needs the permission 'view_proposal'."

    def has_permission(self, request: Request, view: APIView) -> bool:
        user = request.user
        return isinstance(user, User) and permissions.may_view(user)


class Pages(PageNumberPagination):
    page_size = 50
    page_size_query_param = "page_size"
    max_page_size = 200


class HistoryPages(CursorPagination):
    """Newest first, without a count: `next` and `previous` name the row where the page begins."""

    page_size = 50
    page_size_query_param = "page_size"
    max_page_size = 200
    ordering = ("-created_at", "-pk")


class OperatorView(APIView):
    permission_classes = (MayView,)
    renderer_classes = (InertJSONRenderer,)

    def get_exception_handler(self) -> Any:  # DRF's stubs want its own Response; any HttpResponse serves
        return answer_error


class ProposalList(OperatorView, generics.ListAPIView[Proposal]):
    serializer_class = ProposalLineSerializer
    pagination_class = HistoryPages

    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Proposals, newest first."""
        return super().get(request, *args, **kwargs)

    def get_queryset(self) -> QuerySet[Proposal]:
        wanted = _wanted(self.request, status=Proposal.Status.values, tool=names(), bottle=None)
        return queries.proposal_lines(**wanted)


class ProposalDetail(OperatorView):
    def get(self, request: Request, proposal_id: str) -> Response:
        """One proposal with its review: what an approval would change now, and the digest to decide with."""
        return Response(ProposalSerializer(queries.get_proposal(proposal_id)).data)


class Decide(OperatorView):
    """What approve, modify and reject share."""

    body: ClassVar[type[BaseSerializer[Any]]]
    verb: ClassVar[Callable[..., Decision | Approval]]
    grants: ClassVar[bool] = True

    def post(self, request: Request, proposal_id: str) -> Response:
        body = self.body(data=request.data)
        body.is_valid(raise_exception=True)
        if self.grants:
            _refuse_self_approval(request, proposal_id)
        made = type(self).verb(proposal_id, actor=request.user, **body.validated_data)
        # 202: this operator's approval is recorded, and others must follow.
        return Response(
            ProposalSerializer(queries.get_proposal(proposal_id)).data,
            202 if isinstance(made, Approval) else 200,
        )


class Approve(Decide):
    """Grant what was asked."""

    body = ApproveBody
    verb = staticmethod(decisions.approve)


class Modify(Decide):
    """Grant something else for the same target, usually less."""

    body = ModifyBody
    verb = staticmethod(decisions.modify)


class Reject(Decide):
    """Refuse, with a reason that the agent reads."""

    body = RejectBody
    verb = staticmethod(decisions.reject)
    grants = False


def _refuse_self_approval(request: Request, proposal_id: str) -> None:
    """A program with a key never approves what was filed in its own name: a person has to."""
    mine = queries.get_proposal(proposal_id).filed_by == request.user.get_username()
    if mine and isinstance(request.auth, ApiKey):
        raise errors.NotPermitted("This was filed in your name: it is approved at the console, not by a key.")


class BottleList(OperatorView, generics.ListAPIView[Bottle]):
    """The bottles there are."""

    serializer_class = BottleSerializer
    pagination_class = Pages

    def get_queryset(self) -> QuerySet[Bottle]:
        living = bottles.living().select_related("publication")
        return living.annotate(pending=queries.pending_count()).order_by("slug")


class BottleRoutes(OperatorView):
    def get(self, request: Request, slug: str) -> Response:
        """What the bottle can reach now: its published table, as its agent sees it."""
        return Response(RoutesSerializer(queries.live_routes(bottles.get(slug))).data)


class History(OperatorView, generics.ListAPIView[Decision]):
    serializer_class = HistoryLineSerializer
    pagination_class = HistoryPages

    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Decisions, newest first."""
        return super().get(request, *args, **kwargs)

    def get_queryset(self) -> QuerySet[Decision]:
        wanted = _wanted(self.request, status=Proposal.Status.values, tool=names(), bottle=None)
        return queries.history(**wanted)


def _wanted(request: Request, **allowed: Sequence[str] | None) -> dict[str, str]:
    """The filters that were given. An unknown value is refused, not answered with an empty list."""
    wanted = {}
    for name, choices in allowed.items():
        value = request.query_params.get(name, "")
        if value and choices is not None and value not in choices:
            raise errors.BadAsk(f"{name} must be one of {', '.join(choices)}.")
        if value:
            wanted[name] = value
    return wanted


STATUS_OF: Mapping[type[errors.SuperviseError], int] = {
    errors.NoSuchProposal: 404,
    bottles.NoSuchBottle: 404,
    errors.NotPermitted: 403,
    errors.AlreadyDecided: 409,
    errors.StaleReview: 409,
}


def answer_error(error: Exception, context: dict[str, Any]) -> HttpResponse | None:
    """Each refusal as `{error, message}` and what the caller needs next. Errors of ours stay errors."""
    if isinstance(error, errors.SuperviseError):
        body: dict[str, Any] = {"error": error.code, "message": error.message}
        if isinstance(error, errors.AlreadyDecided):
            body |= error.facts
        if isinstance(error, errors.StaleReview):
            fresh = queries.get_proposal(context["kwargs"]["proposal_id"])
            body["proposal"] = ProposalSerializer(fresh).data
        return Response(body, STATUS_OF.get(type(error), 400))
    if (fault := fault_of(error)) is not None:
        log.error("A request to the API failed.", exc_info=error)
        return api_unavailable(context["request"]._request, fault)
    response = exception_handler(error, context)
    if response is not None and isinstance(error, exceptions.APIException):
        response.data = {"error": _code(error), "message": " ".join(_sentences(error.detail))}
    return response


def _code(error: exceptions.APIException) -> str:
    codes = error.get_codes()
    return codes if isinstance(codes, str) else "bad_ask"


def _sentences(detail: Any, field: str = "") -> list[str]:
    if isinstance(detail, Mapping):
        return [
            sentence
            for name, inner in detail.items()
            for sentence in _sentences(inner, "" if name == "non_field_errors" else name)
        ]
    if isinstance(detail, list):
        return [sentence for inner in detail for sentence in _sentences(inner, field)]
    return [f"{field}: {detail}" if field else str(detail)]
