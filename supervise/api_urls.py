"""/api/ on the operator plane. Every path here needs a key or a session."""

from django.urls import path
from drf_spectacular.views import SpectacularAPIView

from . import api

urlpatterns = [
    path("schema/", SpectacularAPIView.as_view(), name="api-schema"),
    path("proposals/", api.ProposalList.as_view(), name="api-proposals"),
    path("proposals/<str:proposal_id>/", api.ProposalDetail.as_view(), name="api-proposal"),
    path("proposals/<str:proposal_id>/approve/", api.Approve.as_view(), name="api-approve"),
    path("proposals/<str:proposal_id>/modify/", api.Modify.as_view(), name="api-modify"),
    path("proposals/<str:proposal_id>/reject/", api.Reject.as_view(), name="api-reject"),
    path("bottles/", api.BottleList.as_view(), name="api-bottles"),
    path("bottles/<str:slug>/routes/", api.BottleRoutes.as_view(), name="api-bottle-routes"),
    path("history/", api.History.as_view(), name="api-history"),
]
