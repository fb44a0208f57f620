"""The console's pages, at the operator plane's root. Every one of them is for signed-in staff."""

from django.urls import path

from . import console

urlpatterns = [
    path("", console.queue, name="queue"),
    path("queue/state", console.queue_state, name="queue-state"),
    path("history/", console.history, name="history"),
    path("proposals/<uuid:proposal_id>/", console.proposal, name="proposal"),
    path("proposals/<uuid:proposal_id>/card", console.card, name="card"),
    path("proposals/<uuid:proposal_id>/approve", console.approve, name="approve"),
    path("proposals/<uuid:proposal_id>/modify", console.modify, name="modify"),
    path("proposals/<uuid:proposal_id>/reject", console.reject, name="reject"),
]
