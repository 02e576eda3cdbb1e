"""A cached pipeline ends as without a cache, whether its steps run or their results are cached (SYS-31, U-19).

Over the pipelines of the law of closure: every step of the outermost sequence is cached, and the run is made twice.
`FLUJO_EXAMPLES` in the environment says how many are looked at.
"""

from dataclasses import replace
from typing import Any

import pytest
from closure_law import Rough, nothing_is_left
from closure_parts import plain
from closure_pipelines import pipeline_of
from hypothesis import given, settings
from hypothesis import strategies as st

from flujo_client import Pipeline, PipelineResult, Step
from flujo_worker.user_code import cache
from tests.support.breadth import examples

TELLING = range(1000, 1015)


def ending(result: PipelineResult) -> Any:
    error = result.error and result.error.type_name
    return result.run_status, error, plain(result.unchecked().output), plain(result.final_pipeline_context)


def run(pipeline: Pipeline, chaos: int, engine: Rough | None = None) -> tuple[Any, Rough]:
    """Run it, with what another engine has kept."""
    with Rough(pipeline, "input", chaos) as own:
        if engine is not None:
            own.cache._entries = engine.cache._entries
        result = own.finish()
        nothing_is_left(own)
    return ending(result), own


def behaves(seed: int, chaos: int = 0) -> int:
    """Say how many results were taken from the cache."""
    pipeline = pipeline_of(seed)
    cached = replace(pipeline, steps=[Step.cached(each) for each in pipeline.steps])
    plainly, _ = run(pipeline, 0)
    first, engine = run(cached, chaos)
    second, engine = run(cached, chaos, engine)
    told = (
        1 if chaos and plainly[0] == "failed" else None
    )  # which branch failed first, and so stopped the others, is luck
    assert first[:told] == second[:told] == plainly[:told], seed
    return sum(each.name == "flujo.cache.hit" for each in engine.story(engine.run_id))


@given(st.integers(0, 2**14), st.integers(0, 50))
@settings(max_examples=examples(25), deadline=None, database=None)
def test_a_cached_pipeline_ends_as_it_would(seed, chaos):
    behaves(seed, chaos)


def test_the_law_looks_at_hits():
    assert sum(map(behaves, TELLING)) > len(TELLING) // 2


def without_changes(question: Any, *_: Any) -> Any:
    return question.values[1]


def test_the_law_tells_a_lost_context(monkeypatch):
    """A mutant: a hit gives the output and forgets what the step wrote."""
    monkeypatch.setattr(cache, "_with_changes", without_changes)
    with pytest.raises(AssertionError):
        [behaves(seed) for seed in TELLING]
