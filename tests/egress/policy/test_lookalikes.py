"""Names that could be taken for a known one, and those that only share a part with it."""

from __future__ import annotations

import pytest

from egress.policy.hostnames import canonical_host
from egress.policy.lookalikes import resembles


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("githud.com", "github.com"),
        ("gihtub.com", "github.com"),
        ("githubb.com", "github.com"),
        ("api.githb.com", "github.com"),
        ("github.co", "github.com"),
        ("g1thub.com", "github.com"),
        ("pyp1.org", "pypi.org"),
        ("openal.com", "openai.com"),
        ("github.com.evil.example", "github.com"),
        ("api-github-com.evil.example", "github.com"),
        ("rnicrosoft.com", "microsoft.com"),
        ("*.githud.com", "github.com"),
        ("api.acme-corq.com", "acme-corp.com"),
    ],
)
def test_it_names_what_is_imitated(host: str, known: str) -> None:
    assert resembles(host, ["internal.acme-corp.com"]) == known


@pytest.mark.parametrize(
    "host",
    [
        "github.com", "api.github.com", "*.github.com", "gist.githubusercontent.com", "example.com",
        "api.example.com", "docs.python.org", "www.acme-corp.com", "gitea.io", "co.uk", "npmjs.com",
    ],
)  # fmt: skip
def test_the_known_and_the_merely_similar_are_left_alone(host: str) -> None:
    assert resembles(host, ["acme-corp.com", "a.example.com"]) is None


def test_a_name_in_other_letters_is_found_in_its_ascii_form() -> None:
    assert resembles(canonical_host("аpple.example.com"), ["apple.example.com"]) is None, "same owner"
    assert resembles(canonical_host("gіthub.com")) == "github.com"
