"""Law 8 for child runs: as a separate run, an import has the same result as inside its parent, and nothing is left over (SYS-16).

All imports of the closure law's pipelines are child runs here, in each other and in everything else, whatever becomes of the messages.
"""

import pytest
from closure_law import LIVE, Rough, imports_in_runs_of_their_own, plain, reference_of
from closure_pipelines import pipeline_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flujo_client.pipeline.pipeline import walk
from flujo_worker.replay.replay import replay
from tests.support.breadth import examples

LARGEST = 2**16


@pytest.fixture(scope="module", autouse=True)
def own_runs():
    with imports_in_runs_of_their_own():
        yield


class Family(Rough):
    """A run whose child runs are looked at too."""

    def runs(self):
        found = [self.run_id]
        for run in found:
            found += [child.id for child in self.children(run)]
        return found

    def cut(self):
        """Addresses are the plan's, so a child run's are no other's."""
        scopes = [scope for run in self.runs() for scope in self.stores.reads.read_scopes(run)]
        return {scope.address for scope in scopes if scope.status == "cancelled"}

    def left(self):
        scopes = [
            scope.address
            for run in self.runs()
            for scope in self.stores.reads.read_scopes(run)
            if scope.status == "open"
        ]
        return scopes + [row.key for run in self.runs() for row in self.history(run) if row.status in LIVE]


@given(st.integers(0, LARGEST), st.integers(0, 2**32))
@settings(max_examples=examples(30), deadline=None, database=None)
def test_an_import_behaves_alike_in_a_run_of_its_own(seed, chaos):
    """M-285, whatever comes twice, late or not at all."""
    pipeline, value = pipeline_of(seed), f"input {seed % 5}"
    assume(any(step.kind == "nested" for _, step in walk(pipeline)))
    with Family(pipeline, value, chaos) as engine:
        result = engine.finish()
        engine.recover()
        replayed = [replay(*engine.recorded(run)) for run in engine.runs()]
        assert [each.difference for each in replayed] == [None] * len(replayed)
        told = reference_of(pipeline, value, engine.cut())
        assert (result.run_status, result.error and result.error.type_name) == (told.status, told.error)
        assert plain(result.unchecked().output) == plain(told.output)
        assert plain(result.final_pipeline_context) == plain(told.context)
        assert engine.left() == []
