"""Fixtures of pytest for pipelines: `flujo_engine` runs them in the test's own process.

pytest imports this module whenever Flujo Worker is installed, so it imports nothing else until a fixture is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from flujo_client import Settings
    from flujo_worker import LocalEngine
    from flujo_worker.testing import Cassette


@pytest.fixture
def flujo_settings() -> Settings:
    """Return the settings of `flujo_engine`: the development defaults. Override it in your conftest.py for others."""
    from flujo_client import Settings

    return Settings()


@pytest.fixture
def flujo_engine(flujo_settings: Settings) -> Iterator[LocalEngine]:
    """Yield a `LocalEngine` that is closed after the test."""
    from flujo_worker import LocalEngine

    with LocalEngine(flujo_settings) as engine:
        yield engine


@pytest.fixture
def flujo_cassette(request: pytest.FixtureRequest) -> Cassette:
    """Return the test's own cassette, `cassettes/<module>/<test>.json` next to its module, in the mode of your settings and environment."""
    from flujo_client import ConfigManager
    from flujo_worker.testing import Cassette

    name = re.sub(r"[^\w.-]+", "-", request.node.name).strip("-")
    folder = request.path.parent / "cassettes" / request.path.stem
    return Cassette(folder / f"{name}.json", ConfigManager().settings())
