"""What agents ask, what operators decided, and the record of both. Django finds the models here."""

from supervise.models.access import ApiKey, Assignment, LoginFailure
from supervise.models.audit import AuditEvent, AuditHead
from supervise.models.mcp_servers import ManagedServer
from supervise.models.proposals import Approval, Decision, Proposal, StandingRefusal
from supervise.models.rebuilds import Rebuild
from supervise.models.webhooks import Delivery, Webhook

__all__ = [
    "ApiKey",
    "Approval",
    "Assignment",
    "AuditEvent",
    "AuditHead",
    "Decision",
    "Delivery",
    "LoginFailure",
    "ManagedServer",
    "Proposal",
    "Rebuild",
    "StandingRefusal",
    "Webhook",
]
