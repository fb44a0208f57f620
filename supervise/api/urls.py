"""/api/ on the operator plane. Every path here needs a key or a session."""

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import path
from django.views.decorators.http import require_safe

from supervise.api import views as api


@require_safe
def schema(request: HttpRequest) -> HttpResponseBase:
    """The library that describes the API is large, so it is loaded only here."""
    from drf_spectacular.views import SpectacularAPIView  # noqa: PLC0415

    return SpectacularAPIView.as_view()(request)


urlpatterns = [
    path("schema/", schema, name="api-schema"),
    path("proposals/", api.ProposalList.as_view(), name="api-proposals"),
    path("proposals/<str:proposal_id>/", api.ProposalDetail.as_view(), name="api-proposal"),
    path("proposals/<str:proposal_id>/approve/", api.Approve.as_view(), name="api-approve"),
    path("proposals/<str:proposal_id>/modify/", api.Modify.as_view(), name="api-modify"),
    path("proposals/<str:proposal_id>/reject/", api.Reject.as_view(), name="api-reject"),
    path("bottles/", api.BottleList.as_view(), name="api-bottles"),
    path("bottles/<str:slug>/routes/", api.BottleRoutes.as_view(), name="api-bottle-routes"),
    path("history/", api.History.as_view(), name="api-history"),
]
