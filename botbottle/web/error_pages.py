"""The operator plane's answers to database faults. They do not need the database."""

from __future__ import annotations

import logging
import sys

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template import loader
from django.views import defaults

from botbottle.database.faults import NOTHING_CHANGED, Fault, fault_of
from botbottle.web.middleware import changes_of

log = logging.getLogger(__name__)
API = "/api/"
READS = ("GET", "HEAD", "OPTIONS")
UNKNOWN = "It is not known whether your change was made: look before you make it again."


def server_error(request: HttpRequest) -> HttpResponse:
    """Django's handler for uncaught errors."""
    error = sys.exc_info()[1]
    return _answer(request, error) or defaults.server_error(request)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Django's handler for bad requests. It takes a session that cannot be saved for a deleted one."""
    return _answer(request, exception) or defaults.bad_request(request, exception)


def _answer(request: HttpRequest, error: BaseException | None) -> HttpResponse | None:
    while error is not None and fault_of(error) is None:
        error = error.__cause__ or error.__context__
    fault = fault_of(error)
    if fault is None:
        return None
    log.error("A page of the console failed.", exc_info=error)
    return unavailable(request, fault)


def unavailable(request: HttpRequest, fault: Fault) -> HttpResponse:
    if request.path_info.startswith(API):
        return api_unavailable(request, fault)
    context = {
        "reason": fault.cause.sentence,
        "outcome": _outcome(request, fault),
        "retry": fault.cause.retry_after,
        "reads": request.method in READS,
    }
    return _later(HttpResponse(loader.render_to_string("503.html", context), status=503), fault)


def api_unavailable(request: HttpRequest, fault: Fault) -> HttpResponse:
    message = f"{fault.cause.sentence} {_outcome(request, fault)} Try again in {fault.cause.retry_after} s."
    return _later(JsonResponse({"error": "unavailable", "message": message}, status=503), fault)


def _outcome(request: HttpRequest, fault: Fault) -> str:
    changes = changes_of(request)
    certain = request.method in READS or (changes is not None and not changes.possible(fault))
    return NOTHING_CHANGED if certain else UNKNOWN


def _later(response: HttpResponse, fault: Fault) -> HttpResponse:
    response.headers["Retry-After"] = str(fault.cause.retry_after)
    response._has_been_logged = True  # type: ignore[attr-defined]  # by whoever caught the error
    return response
