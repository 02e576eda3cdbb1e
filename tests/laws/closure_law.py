"""The law of closure (law 8): a run ends as in the reference, whatever happens to its messages, and nothing is left over.

In: a pipeline, an input, and the source of faults. It must not know the pipelines.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from closure_parts import CALLS, answer_to, plain
from closure_pipelines import pipeline_of
from interpreter import Ending, Told, interpret

from flujo_client.address import is_repeated
from flujo_client.config.manager import Settings
from flujo_client.contract.approval import OPEN
from flujo_client.contract.envelope import TASK_JOIN, Envelope
from flujo_client.contract.records import NoticeRecord, Recording, RunRecord, ScopeRecord
from flujo_client.contract.results import PipelineResult, StepResult
from flujo_client.pipeline.nested import ImportStep
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.serial import loads
from flujo_worker.replay.replay import replay
from flujo_worker.testing import LocalEngine
from flujo_worker.user_code import contexts
from tests.support.builders import member, packed
from tests.support.memory import asked

Recorded = tuple["Recording", list["NoticeRecord"], list["ScopeRecord"], list["RunRecord"]]
LIVE = ("ready", "queued", "running", "paused")
ANSWERED = 0.2
"""How often someone answers after a message."""
DOUBLED, WELL, LOST = 0.05, 0.93, 0.97
"""Of all messages, in this order: those that come twice, well, not at all, and to a worker that dies."""
UNTOLD = {"failed_branch_cost_usd", "failed_branch_tokens", "original_error"}


class Rough(LocalEngine):
    """An engine with one run, whose messages come in any order, some of them twice, some never, and whose workers die.

    Args:
        pipeline: what to run.
        value: its input.
        chaos: what all mishaps are drawn from; 0 for none.
    """

    def __init__(self, pipeline: Pipeline, value: Any, chaos: int) -> None:
        self._ticks = 0
        super().__init__(Settings(worker={"max_lost": 1000}, limits={"snapshot_inline_bytes": 400}))
        self._luck = Random(chaos) if chaos else None
        self._ghosts = 0
        self.run_id = self.enqueue(pipeline, value)

    @property
    def now(self) -> float:
        """Never the same time twice, so that commits have an order as they have in Postgres."""
        self._ticks += 1
        return self._now + self._ticks * 1e-6

    @now.setter
    def now(self, value: float) -> None:
        self._now = value

    def recorded(self, run: str) -> Recorded:
        """What replays a run, as it comes back from Postgres."""
        stores = self.stores
        notices = [
            replace(each, answers=tuple(json.loads(json.dumps(each.answers))))
            for each in asked(stores).read_notices(run)
        ]
        return (
            asked(stores).read_recording(run),
            notices,
            stores.reads.read_scopes(run),
            stores.reads.read_children(run),
        )

    def finish(self) -> PipelineResult:
        """Deliver until the run has ended; an engine that lost track of it is stuck here."""
        for _ in range(300):
            while self.bus:
                self._deliver_one()
                if self._luck is not None and self._luck.random() < ANSWERED:
                    self._answer()
            if not self.stores.reads.read_run(self.run_id).is_live:
                return self.result(self.run_id)
            self.now += 100.0
            self._answer()
            self.recover()
            self.sweep(may_judge=True)
        raise AssertionError(f"stuck: {self.history(self.run_id)}")

    def _deliver_one(self) -> None:
        luck = self._luck
        if luck is None:
            self.deliver(self.bus.popleft())
            return
        self.bus.rotate(luck.randrange(len(self.bus)))
        message, mishap = self.bus.popleft(), luck.random()
        if mishap < DOUBLED:
            self.bus.append(message)
        if mishap < WELL:
            self.deliver(message)
        elif mishap > LOST:
            self._die_with(message)

    def _answer(self) -> None:
        """A person answers the first open question; someone else, who was slower, is not heard."""
        question = next((each for each in self.stores.reads.read_questions(self.run_id) if each.state == OPEN), None)
        if question is not None:
            answers = [packed(answer_to(question.message)), packed("too late")]
            assert [self.stores.client.answer(question.key, each) for each in answers] == [True, False]
            self.sweep()

    def _die_with(self, message: bytes) -> None:
        """Another worker claims what the message is about, and is gone."""
        wire = loads(message)
        if wire["task"] != TASK_JOIN:
            self._ghosts += 1
            ghost = member(f"ghost-{self._ghosts}")
            self.stores.leases.register_worker(ghost, 5.0)
            self.stores.attempts.claim(Envelope.from_wire(wire).key, ghost.id, max_lost=1000)

    def cut(self) -> set[str]:
        """The places that were stopped."""
        return {each.address for each in self.stores.reads.read_scopes(self.run_id) if each.status == "cancelled"}


@contextmanager
def imports_in_runs_of_their_own() -> Iterator[None]:
    """Every import asks for a separate run. Those pipelines look at all of their context, so none is told which run it is in."""
    rules, put = ImportStep.rules, contexts.put
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ImportStep, "rules", lambda step: rules(step) | {"own_run": step.name})
        patch.setattr(contexts, "put", lambda into, name, value: name == "run_id" or put(into, name, value))
        yield


def behaves(pipeline: Pipeline, value: Any = "input", chaos: int = 0) -> PipelineResult:
    """It ends as the reference says, whatever becomes of its messages, and nothing is left over."""
    with Rough(pipeline, value, chaos) as engine:
        CALLS.clear()
        result, calls = engine.finish(), CALLS.copy()
        CALLS.clear()
        assert_same_ending(result, reference_of(pipeline, value, engine.cut()))
        nothing_is_left(engine)
        again = replay(*engine.recorded(engine.run_id))
        assert again.difference is None, again
        assert engine.cut() or calls == CALLS, "M-281"
    return result


def reference_of(pipeline: Pipeline, value: Any, cut: set[str]) -> Ending:
    """What the reference says of a run in which these places were stopped."""
    model = pipeline.context_model
    return interpret(pipeline, value, None if model is None else model(), cut.__contains__)


def assert_same_ending(actual: PipelineResult, reference: Ending) -> None:
    """Compare everything but times, costs and the words of feedback."""
    error = actual.error and actual.error.type_name
    assert (actual.run_status, error) == (reference.status, reference.error)
    assert_same_history(actual.step_history, reference.history, "")
    assert plain(actual.unchecked().output) == plain(reference.output)
    assert plain(actual.final_pipeline_context) == plain(reference.context)


def assert_same_history(actual: list[StepResult], reference: list[Told], place: str) -> None:
    assert [each.name for each in actual] == [each.name for each in reference], place
    for result, told in zip(actual, reference, strict=True):
        same_node(result, told, f"{place}/{told.name}")


def same_node(result: StepResult, told: Told, place: str) -> None:
    if told.cut:
        assert (result.success, result.output) == (False, None), place
        return
    assert_same_history(result.step_history, told.history, place)
    metadata = {key: value for key, value in result.metadata_.items() if key not in UNTOLD}
    seen = (result.success, plain(result.output), result.attempts, metadata)
    assert seen == (told.success, plain(told.output) if told.success else None, told.attempts, told.metadata), place


def nothing_is_left(engine: Rough) -> None:
    """After its end a run has no open scope, no live attempt, and no context but the root's and those that results tell."""
    assert [each.address for each in engine.stores.reads.read_scopes(engine.run_id) if each.status == "open"] == []
    assert [each.key for each in engine.history(engine.run_id) if each.status in LIVE] == []
    below = {
        place: scope for (_, place), scope in engine.stores.tables.scopes.items() if place and scope.context is not None
    }
    assert [place for place, scope in below.items() if scope.status != "succeeded" or is_repeated(place)] == []


def of_seed(seed: int, chaos: int = 0, make: Callable[[int], Pipeline] = pipeline_of) -> PipelineResult:
    return behaves(make(seed), f"input {seed % 5}", chaos)
