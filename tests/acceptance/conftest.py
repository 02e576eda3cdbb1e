"""`site`: services, tables and a client, with leases short enough to wait for; workers come with the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from fleet import BRISK, Site

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def site(services, tmp_path_factory) -> Iterator[Site]:
    """One for all tests of a module."""
    with Site(services, tmp_path_factory.mktemp("site"), worker=BRISK) as site:
        yield site
