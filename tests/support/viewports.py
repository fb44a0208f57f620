"""The looks every flow is tried in: desk and phone, light and dark, with script and without."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@dataclass(frozen=True, slots=True)
class Look:
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


DESK = Look()
# A flow meets each two of size, scheme and script together. It need not meet all three, because dark changes
# colours, nothing else: `is_alike_in_light_and_dark` holds that on every page, at every form, at every end.
SCRIPTED = [Look(), Look(is_phone=True, is_dark=True)]
PLAIN = [Look(is_dark=True, script=False), Look(is_phone=True, script=False)]
# For pages that are only read: one window takes on all four looks, see `every_size_and_scheme`.
with_script_and_without = pytest.mark.parametrize(
    "script", [DESK, Look(script=False)], ids=["all-looks", "all-looks-plain"]
)


def every_size_and_scheme(page: Any) -> Iterator[Look]:
    """Ends as it begins, on a light desk."""
    for is_phone, is_dark in ((False, True), (True, False), (True, True), (False, False)):
        look = Look(is_phone, is_dark)
        page.set_viewport_size({"width": look.width, "height": look.height})
        page.emulate_media(color_scheme="dark" if look.is_dark else "light")
        yield look


# For a flow that has to work without script.
in_every_look = pytest.mark.parametrize("look", [*SCRIPTED, *PLAIN], ids=str)
# For a flow that is made by script.
in_every_scripted_look = pytest.mark.parametrize("look", SCRIPTED, ids=str)
