"""The tree searches of the reference and the how-to do what their pages say."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_module import page_module

from flujo_client import Pipeline
from flujo_worker.testing import LocalEngine

ROOT = Path(__file__).parents[2]
voucher = page_module("reference/pipelines.md", "voucher.py")
SLOGAN = ROOT / "examples/blueprints/slogan.yaml"


@pytest.fixture(scope="module")
def engine():
    with LocalEngine() as engine:
        yield engine


def test_a_voucher_is_spent_to_the_last_coin(engine):
    output = engine.run(voucher.pipeline, 18).output
    assert (output.path, output.score, output.reason) == (["mead", "soap", "soap"], 1.0, "18 of 18")


def test_a_voucher_that_nothing_fits_is_told(engine):
    result = engine.run(voucher.pipeline, 5)
    assert "the best of 2 has 0.8" in result.step_history[-1].feedback


def test_the_how_to_shows_a_blueprint_that_runs(engine):
    page = (ROOT / "docs/how-to/search-a-tree.md").read_text()
    assert f"```yaml\n# examples/blueprints/slogan.yaml\n{SLOGAN.read_text()}```" in page
    result = engine.run(Pipeline.from_yaml_file(SLOGAN), "a slogan for bees")
    assert (result.success, result.output.goal_reached) == (True, False)
