"""The admin's titles, and the read-only base of all our model pages: changes are actions, not forms."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.html import format_html

from botbottle.core import sanitize

admin.site.site_header = "bot-bottle"
admin.site.enable_nav_sidebar = False  # lists of records need the room; the index has the same links
admin.site.site_title = "bot-bottle"
admin.site.index_title = "Records"
admin.site.site_url = None  # the header has its own link to the queue


def hostile(text: str) -> str:
    """Render agents' text as an escaped block with every hidden character visible."""
    return format_html('<pre class="hostile"><bdi>{}</bdi></pre>', sanitize.make_visible(text))


def hostile_line(text: str) -> str:
    """Make hidden characters of agents' text visible in a list; Django escapes it."""
    return sanitize.make_visible(text)


def hostile_json(value: object) -> str:
    return hostile(json.dumps(value, indent=2, ensure_ascii=False))


class CappedPaginator(Paginator):  # type: ignore[type-arg]
    """A paginator that counts no further than people leaf: for older rows there are filters."""

    most = 10_000
    object_list: QuerySet[Model]

    @cached_property
    def count(self) -> int:
        return self.object_list.order_by()[: self.most].count()


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """A model page for reading. Subclasses list the shown columns in `fields`; new columns do not appear."""

    when_empty = ""  # shown for an empty list; see templates/admin/change_list.html
    list_per_page = 50
    paginator = CappedPaginator
    show_full_result_count = False

    def list_note(self) -> str:
        """What the same template says above the list, if anything."""
        return ""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.fields


class HistoryAdmin(ReadOnlyAdmin):
    """A page for records that are kept for ever: the cost of a list does not depend on their number.

    It has one order, backed by an index, and a search covers only the newest rows that match the filters.
    """

    sortable_by = ()
    searched = 2_000
    exact_id = ""  # the column in which a whole id is searched, whatever the row's age
    # Not Django's search_help_text: screen readers would take it for the field's label.
    search_scope = f"A search looks at the newest {searched:,} rows. A whole id is found wherever it is."

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        if not search_term:
            return queryset, False
        if self.exact_id:
            with suppress(ValueError):
                return queryset.filter(**{self.exact_id: UUID(search_term)}), False
        newest = list(queryset.values_list("pk", flat=True)[: self.searched])
        # By key alone: with the filters in the query, SQLite would read every row that matches them.
        chosen = self.get_queryset(request).filter(pk__in=newest).order_by(*queryset.query.order_by)
        if not isinstance(self.list_select_related, bool):
            chosen = chosen.select_related(*self.list_select_related)
        return super().get_search_results(request, chosen, search_term)
