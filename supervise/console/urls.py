"""The console's pages, at the operator plane's root. Every one of them is for signed-in staff."""

from django.urls import path

from supervise.console import bulk, decision_forms, draft_views
from supervise.console import views as console

urlpatterns = [
    path("", console.queue, name="queue"),
    path("queue/state", console.queue_state, name="queue-state"),
    path("queue/list", console.queue_list, name="queue-list"),
    path("queue/cards", console.queue_cards, name="queue-cards"),
    path("queue/drafts", draft_views.queue_drafts, name="queue-drafts"),
    path("history/", console.history, name="history"),
    path("refusals/", console.standing_refusals, name="standing-refusals"),
    path("refusals/<int:refusal_id>/lift", decision_forms.lift, name="lift"),
    path("bulk/", bulk.bulk, name="bulk"),
    path("bulk/approve", bulk.bulk_approve, name="bulk-approve"),
    path("bulk/reject", bulk.bulk_reject, name="bulk-reject"),
    path("draft/", draft_views.draft, name="draft"),
    path("draft/approve", draft_views.approve_draft, name="approve-draft"),
    path("proposals/<uuid:proposal_id>/", console.proposal, name="proposal"),
    path("proposals/<uuid:proposal_id>/approve", decision_forms.approve, name="approve"),
    path("proposals/<uuid:proposal_id>/modify", decision_forms.modify, name="modify"),
    path("proposals/<uuid:proposal_id>/preview", decision_forms.preview, name="preview"),
    path("proposals/<uuid:proposal_id>/reject", decision_forms.reject, name="reject"),
    path("proposals/<uuid:proposal_id>/snooze", decision_forms.snooze, name="snooze"),
    path("proposals/<uuid:proposal_id>/wake", decision_forms.wake, name="wake"),
]
