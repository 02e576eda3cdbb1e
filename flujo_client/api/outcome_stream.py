"""A run's outcomes as they come: what is new in a result, and when to look again. Pure but for the clock."""

from __future__ import annotations

import time
from collections.abc import Iterator

from flujo_client.contract.records import LIVE_RUN
from flujo_client.contract.results import BackgroundLaunched, Failure, PipelineResult, StepOutcome, StepResult, Success

STREAM_EVERY_S = 0.05
LOOKING_COSTS = 5
"""A look at a run with thousands of iterations takes a while: a stream waits so many times as long before the next one."""


def is_over(result: PipelineResult) -> bool:
    """Return whether no outcome will come before a person answers."""
    return result.run_status not in LIVE_RUN or result.run_status == "paused"


def news(result: PipelineResult, seen: int) -> Iterator[StepOutcome | PipelineResult]:
    """Give what is new in a result of which so many steps were seen."""
    yield from map(_outcome, result.step_history[seen:])
    if is_over(result):
        yield from result.signals
        yield result


def pause(began: float) -> float:
    """Return the seconds to wait after a look that began then."""
    return max(STREAM_EVERY_S, LOOKING_COSTS * (time.monotonic() - began))


def _outcome(step: StepResult) -> StepOutcome:
    if step.metadata_.get("is_background"):
        return BackgroundLaunched(task_id=step.metadata_["child_run"], step_name=step.name)
    return Success(step_result=step) if step.success else Failure(feedback=step.feedback, step_result=step)
