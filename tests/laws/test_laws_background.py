"""Law 8 for the background: a pipeline has the same result as without its background steps, and each of those the same as alone (SYS-31).

Any step of the closure law's pipelines may be one here, in each other and in everything else, whatever becomes of the messages.
"""

from random import Random

from closure_law import LIVE, Rough, plain, reference_of
from closure_pipelines import Maker
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from interpreter import interpret

from flujo_client.contract.context import ContextState, PipelineContext
from flujo_client.pipeline.check import findings_of
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.step import StepConfig
from flujo_client.serial import Resolver, decode
from tests.support.breadth import examples

LARGEST = 2**16
BEHIND = StepConfig(execution_mode="background")


class Hurried(Maker):
    """Puts one in three steps into the background, drawn apart from the rest."""

    def __init__(self, seed):
        super().__init__(seed)
        self._behind = Random(seed)

    def step(self, name, model, depth):
        made = super().step(name, model, depth)
        return Pipeline([made]).as_step(name, config=BEHIND) if self._behind.random() < 1 / 3 else made


class Family(Rough):
    """A run that is followed by all that it launched."""

    def finish_all(self):
        """Each run with its result, in the order they were found."""
        found, results = [self.run_id], {}
        for run in found:
            self.run_id = run
            results[run] = self.finish()
            self.recover()
            found += [child.id for child in self.children(run)]
        return results

    def cut_in(self, run):
        return {scope.address for scope in self.stores.reads.read_scopes(run) if scope.status == "cancelled"}

    def left(self, runs):
        scopes = [each.address for run in runs for each in self.stores.reads.read_scopes(run) if each.status == "open"]
        return scopes + [row.key for run in runs for row in self.history(run) if row.status in LIVE]

    def launched(self, run):
        return [each.data["task_id"] for each in self.story(run) if each.name == "background.launched"]

    def alone(self, run):
        """What the reference says of a run in the background, given what that was launched with."""
        row = self.stores.tables.runs[run]
        root, cut = row.ticket.root, self.cut_in(run)
        node = row.plan.locate(root.removesuffix("/body")).container
        step = self._local._entries[row.ticket.reference].steps[node.path]
        value, context = (None if each is None else self._value(each) for each in (row.input, row.launched_with))
        return interpret(step.bodies()["body"], value, context, lambda place: f"{root}/{place}" in cut)

    def _value(self, packed):
        if packed.is_reference:
            packed = self.stores.blobs.fetch([packed.digest])[packed.digest]
        return decode(packed.tree(), resolve=Resolver(("*",)))


@given(st.integers(0, LARGEST), st.integers(0, 2**32))
@example(1251, 0)  # an import with a context of its own, in the background
@settings(max_examples=examples(40), deadline=None)
def test_each_run_behaves_as_if_it_were_alone(seed, chaos):
    """M-285, whatever comes twice, late or not at all; and each launch begins one run."""
    pipeline, value = Hurried(seed).pipeline(), f"input {seed % 5}"
    assume(not is_too_deep(pipeline))
    with Family(pipeline, value, chaos) as engine:
        results = engine.finish_all()
        [first, *tasks] = results
        told = reference_of(pipeline, value, engine.cut_in(first))
        _same(results[first], told)
        for task in tasks:
            _same(results[task], engine.alone(task))
        assert sorted(tasks) == sorted(task for run in results for task in engine.launched(run))
        assert engine.left(results) == []


def is_too_deep(pipeline):
    """Return whether it exceeds the nesting limit: a step in the background adds a container."""
    return any("is inside more than" in str(each) for each in findings_of(pipeline, allowed=("*",)))


def _same(result, told):
    """A run in the background that failed says so in its context besides; the context of one that succeeded says that it has."""
    assert (result.run_status, result.error and result.error.type_name) == (told.status, told.error)
    assert plain(result.unchecked().output) == plain(told.output)
    if told.status == "succeeded":
        ended = {"status": ContextState.COMPLETED} if isinstance(told.context, PipelineContext) else {}
        expected = told.context.model_copy(update=ended) if ended else told.context
        assert plain(result.final_pipeline_context) == plain(expected)
