"""Template filters for text that agents wrote. They return plain text, so templates still escape it."""

from __future__ import annotations

from django import template

from botbottle.core import sanitize

register = template.Library()


@register.filter
def visible(text: object) -> str:
    return sanitize.make_visible(str(text))


@register.filter
def one_line(text: object, limit: int) -> str:
    return sanitize.one_line(str(text), limit)
