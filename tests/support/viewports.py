"""The looks every flow is tried in: desk and phone, light and dark, with script and without."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@dataclass(frozen=True, slots=True)
class Viewport:
    """Its name also serves for bottles and hosts of one test."""

    is_phone: bool = False
    is_dark: bool = False
    script: bool = True

    def __str__(self) -> str:
        words = ("phone" if self.is_phone else "wide", "dark" if self.is_dark else "light")
        return "-".join(words if self.script else (*words, "plain"))

    @property
    def width(self) -> int:
        return (PHONE if self.is_phone else WIDE)["width"]

    @property
    def height(self) -> int:
        return (PHONE if self.is_phone else WIDE)["height"]

    @property
    def options(self) -> dict[str, Any]:
        """Of a browser's window. A phone has a finger, which is not a mouse."""
        return {
            "viewport": PHONE if self.is_phone else WIDE,
            "color_scheme": "dark" if self.is_dark else "light",
            "java_script_enabled": self.script,
            "has_touch": self.is_phone,
        }


DESK = Viewport()
# A flow meets each size, each scheme, and script or none. It need not meet all of them together: dark changes
# colours, nothing else, which `is_alike_in_light_and_dark` holds on every page and at the forms of flows.
SCRIPTED = [Viewport(), Viewport(is_phone=True, is_dark=True)]
PLAIN_PHONE = Viewport(is_phone=True, is_dark=True, script=False)
# For pages that are only read: one window takes on all four looks, see `every_size_and_scheme`.
with_script_and_without = pytest.mark.parametrize(
    "script", [DESK, Viewport(script=False)], ids=["all-looks", "all-looks-plain"]
)


def every_size(page: Any) -> Iterator[Viewport]:
    """Ends as it begins, on a desk."""
    for look in (Viewport(is_phone=True), DESK):
        page.set_viewport_size({"width": look.width, "height": look.height})
        yield look


def every_size_and_scheme(page: Any) -> Iterator[Viewport]:
    """Ends as it begins, on a light desk."""
    for is_phone, is_dark in ((False, True), (True, False), (True, True), (False, False)):
        look = Viewport(is_phone, is_dark)
        page.set_viewport_size({"width": look.width, "height": look.height})
        page.emulate_media(color_scheme="dark" if look.is_dark else "light")
        yield look


# For a flow that has to work without script.
with_script_and_plain_phone = pytest.mark.parametrize("look", [DESK, PLAIN_PHONE], ids=str)
# The same, where a phone's layout of what script shows matters too.
in_every_look = pytest.mark.parametrize("look", [*SCRIPTED, PLAIN_PHONE], ids=str)
# For a flow that is made by script, where the layout matters.
in_every_scripted_look = pytest.mark.parametrize("look", SCRIPTED, ids=str)
# For a flow that is made by script, where it does not.
on_the_desk = pytest.mark.parametrize("look", [DESK], ids=str)
