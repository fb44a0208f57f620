"""One request of a connection as far as it is known: its head, where it aims, and the record of it."""

from __future__ import annotations

from egress.proxy.errors import Refusal
from egress.proxy.http.heads import RequestHead, parse_request
from egress.proxy.http.targets import Target
from egress.proxy.request.inspection import conceal
from egress.proxy.state.bottle import Bottle
from egress.proxy.state.proxy import Proxy
from egress.proxy.state.records import blank_record


class CurrentRequest:
    def __init__(self, proxy: Proxy, bottle: Bottle | None) -> None:
        self._proxy = proxy
        self.head: RequestHead | None = None
        self.target: Target | None = None
        self.record = blank_record(bottle.slug if bottle is not None else "")
        self.record.begin()

    def parse(self, raw: bytes) -> RequestHead:
        """Raises BadRequest."""
        self.record.begin()
        self.head = head = parse_request(raw, max_fields=self._proxy.limits.head_fields)
        self.record.method = head.method
        return head

    def set_target(self, target: Target) -> None:
        self.target, record = target, self.record
        record.scheme, record.host, record.path = target.scheme, target.host, target.path

    def note_allowed(self) -> None:
        self.record.verdict, self.record.reason = "allowed", "ok"

    def note_refusal(self, refusal: Refusal) -> None:
        record = self.record
        record.verdict = "refused" if refusal.is_ours else "allowed"
        record.reason, record.status, record.ask = refusal.reason, refusal.status, refusal.ask

    def note_end(self, reason: str) -> None:
        """The request did not get to its own end. What is known of it already says more than that."""
        if self.head is not None and self.record.reason in ("", "ok"):
            self.record.reason = reason

    def keep_record(self, bottle: Bottle | None) -> None:
        """Unless nothing was asked, and nothing went wrong."""
        if self.head is None and not self.record.reason:
            return
        if bottle is not None and not self.record.url_is_clean:
            conceal(self._proxy.scanners.search(bottle), self.record)
        self._proxy.records.add(self.record)
