"""The bottles as the live page shows them: state and what is wrong. To look at only."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from supervise.console.overview import bottles_overview
from supervise.console.views import operator_page


@operator_page
def strip(request: HttpRequest) -> HttpResponse:
    """The strip by itself, for the open page to put in its place."""
    return render(request, "supervise/queue/_bottles_strip.html", {"bottles": bottles_overview()})
