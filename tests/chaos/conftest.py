"""Puts the acceptance tests' folder on the path: chaos runs on steps like theirs, and may be started alone."""

from __future__ import annotations

import sys

import pytest
from fleet import STEPS

if str(STEPS) not in sys.path:
    sys.path.append(str(STEPS))


@pytest.fixture(scope="module")
def services(services_to_break):
    """Return services that no other test process uses: chaos wipes, restarts and freezes them."""
    return services_to_break
