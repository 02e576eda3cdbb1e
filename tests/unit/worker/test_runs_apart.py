"""Runs of one pipeline at the same time share only its plan (U-23), and each has its own status (C-43)."""

from __future__ import annotations

from container_parts import Notes, step

from flujo_client.contract.records import RUN_STATUSES
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.step import Step
from tests.support.memory import asked


class Items(Notes):
    items: tuple[int, ...] = ()


def add(data, *, context):
    context.count += data
    return context.count


PIPELINE = Pipeline(
    [
        Step.map_over("each", step("add", add), iterable_input="items"),
        Step.loop_until(
            "more", step("again", lambda _, context: add(1, context=context)), lambda out, _: out >= 8, max_loops=9
        ),
    ],
    context_model=Items,
)


def test_runs_whose_attempts_alternate_have_contexts_and_loops_of_their_own(engine):
    """U-23."""
    given = [(1, 2, 3), (4,), (), (6, 1)]
    runs = [engine.enqueue(PIPELINE, "go", context={"items": items}) for items in given]
    engine.drain()
    results = [engine.result(run) for run in runs]
    assert [result.final_pipeline_context.items for result in results] == given
    assert [result.final_pipeline_context.count for result in results] == [8] * 4
    assert [len(result.step_history[1].step_history) for result in results] == [2, 4, 8, 1]


def test_a_run_has_more_statuses_than_its_context(engine):
    """C-43: next to the four that a context knows, a run waits in a queue, is cancelled, or expires."""
    waiting, cancelled = engine.enqueue(PIPELINE, "go"), engine.enqueue(PIPELINE, "go")
    late = engine.enqueue(PIPELINE, "go", deadline=engine.now - 1)
    assert engine.stores.reads.read_run(waiting).status == "queued"
    asked(engine.stores).request_cancel(cancelled, "never mind")
    engine.drain()
    statuses = [engine.stores.reads.read_run(run).status for run in (cancelled, late)]
    assert statuses == ["cancelled", "expired"]
    assert {"queued", *statuses, "running", "paused", "succeeded", "failed"} <= set(RUN_STATUSES)
