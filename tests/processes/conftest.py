"""One running bot-bottle for each worker: tests bring bottles of their own, and ask about those only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.server import RunningServer
from tests.support.site import Site, running_site

UNLIMITED = {"SUPERVISE_MAX_PENDING": "100000", "SUPERVISE_MAX_PER_MINUTE": "1000000"}


@pytest.fixture(scope="session")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A test may kill its web and its egress process, and ends when both are back."""
    with running_site(tmp_path_factory.mktemp("site"), **UNLIMITED) as site:
        yield site


@pytest.fixture(scope="session")
def server(shared_site: Site) -> RunningServer:
    return shared_site.server
