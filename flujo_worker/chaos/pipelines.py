"""The pipelines that the monkey runs.

Each attempt at a step that acts leaves an effect in the ledger, puts its key into the context, and costs the same. So a merge that was
lost or made twice shows in the context, in the ledger and in the budgets alike.
"""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any, Final, NamedTuple

from pydantic import BaseModel

from flujo_client.contract.limits import UsageLimits
from flujo_client.errors import NonRetryableError
from flujo_client.pipeline.human import HumanInTheLoopStep
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.step import Step, StepConfig
from flujo_client.plan.plan import Backoff
from flujo_worker.chaos import ledger
from flujo_worker.runtime.attempt_run import current_run

MODULE: Final = __name__
HEAVY_QUEUE: Final = "flujo.chaos.heavy"
PAUSE_S: Final = 0.2
COST_USD, TOKENS = 0.01, 10
LOAD_BYTES: Final = 200_000
ROUNDS: Final = 4
_CONFIG: Final = StepConfig(
    max_retries=5, backoff=Backoff(base_s=0.1), expected_cost_usd=COST_USD, expected_tokens=TOKENS
)


class Trail(BaseModel):
    """The context: the keys of the attempts that were merged, and a load."""

    merged: list[str] = []
    load: str = ""


class StepDone(BaseModel):
    """A step's output. The engine records its cost as spent."""

    cost_usd: float = COST_USD
    token_counts: int = TOKENS


# --- steps -----------------------------------------------------------------------------------------------------------


def act(_before: Any, *, context: Trail) -> StepDone:
    """Record an effect, with a pause before and after it: a fault may happen anywhere."""
    run = current_run()
    assert run is not None
    assert run.info is not None
    _pause()
    ledger.record(run.info)
    _pause()
    context.merged.append(run.info.key)
    return StepDone()


def act_with_load(before: Any, *, context: Trail) -> StepDone:
    """Do the same with a context that is too large for a message."""
    context.load = random.Random(LOAD_BYTES).randbytes(LOAD_BYTES // 2).hex()
    return act(before, context=context)


def fail_once(before: Any, *, context: Trail) -> StepDone:
    """Fail the first attempt, with an effect and a changed context that must not be merged."""
    run, done = current_run(), act(before, context=context)
    if run is not None and run.info is not None and run.info.number == 1:
        raise ValueError("fails at the first attempt")
    return done


def refuse(_before: Any) -> None:
    """Fail permanently."""
    _pause()
    raise NonRetryableError("fails at every attempt")


def kill_process(_before: Any) -> None:
    """Kill the process that it runs in, with the other attempts there."""
    _pause()
    os.kill(os.getpid(), signal.SIGKILL)


def is_long(_done: StepDone, context: Trail) -> bool:
    return len(context.merged) >= ROUNDS


def is_even(_before: Any, context: Trail) -> bool:
    return len(context.merged) % 2 == 0


def collect(context: Trail, branches: dict[str, Trail]) -> None:
    """Merge branches by slow user code."""
    _pause()
    known = set(context.merged)
    for branch in branches.values():
        context.merged += [key for key in branch.merged if key not in known]


def _pause() -> None:
    time.sleep(random.uniform(0.0, PAUSE_S))


# --- pipelines -------------------------------------------------------------------------------------------------------


def _step(name: str, does: Any = act, **options: Any) -> Step:
    return Step(name, does, config=_CONFIG, **options)


def _row(*steps: Step) -> Pipeline:
    return Pipeline(steps, context_model=Trail)


def _deep(depth: int) -> Step:
    inner = _deep(depth - 1) if depth > 1 else _step("leaf")
    return Step.parallel(f"fan{depth}", {"left": inner, "right": inner}, reduce="first")


_arms: dict[str, Step | Pipeline] = {
    "one": _step("one"),
    "two": _row(_step("two"), _step("three")),
    "shaky": _step("shaky", fail_once),
}
_lanes: dict[str, Step | Pipeline] = {f"lane{n}": _step("lane") for n in range(5)}
_sides = Step.branch_on("side", is_even, {True: _step("even"), False: _step("odd")})
_bad: dict[str, Step | Pipeline] = {"bad": Step("bad", refuse)}
_late: dict[str, Step | Pipeline] = {"late": _row(*(_step(f"late{n}") for n in range(3)))}

chain = _row(*(_step(f"step{n}") for n in range(4)))
retry = _row(_step("before"), _step("shaky", fail_once), _step("after"))
load = _row(_step("first", act_with_load), _step("second"))
heavy_queue = _row(_step("here"), _step("there", queue=HEAVY_QUEUE), _step("back"))
approval = _row(_step("before"), HumanInTheLoopStep("approve", "May it continue?"), _step("after"))
loop = _row(Step.loop_until("rounds", _row(_sides), is_long, max_loops=20), _step("after"))
fan_out = _row(_step("before"), Step.parallel("fan", _arms, reduce="last"), _step("after"))
merging = _row(Step.parallel("fan", _arms, merge_strategy=collect, reduce="first"), _step("after"))
lanes = _row(Step.parallel("fan", _lanes, max_concurrency=2, reduce="first"), _step("after"))
deep = _row(_deep(3), _step("after"))
ignoring = _row(Step.parallel("fan", _arms | _bad, on_branch_failure="ignore", reduce="first"), _step("after"))
budget = fan_out
failing = _row(Step.parallel("fan", {"deep": _deep(2)} | _bad | _arms | _late), _step("after"))
overspent = _row(*(_step(f"step{n}") for n in range(4)))
killer = _row(_step("before"), Step("kill", kill_process))


class Shape(NamedTuple):
    """The expected end of a run that is not cancelled."""

    merges: int | None
    """How many attempts at steps that act are merged; None where that is chance."""
    error: str | None = None
    limits: UsageLimits | None = None


_PLENTY = UsageLimits(total_cost_usd_limit=100 * COST_USD, total_tokens_limit=100 * TOKENS)
_LITTLE = UsageLimits(total_cost_usd_limit=2.5 * COST_USD)
SHAPES: Final = {
    "chain": Shape(4),
    "retry": Shape(3),
    "load": Shape(2),
    "heavy_queue": Shape(3),
    "approval": Shape(2),
    "loop": Shape(5),
    "fan_out": Shape(6),
    "merging": Shape(5),
    "lanes": Shape(6),
    "deep": Shape(9),
    "ignoring": Shape(5),
    "budget": Shape(6, limits=_PLENTY),
    "failing": Shape(None, "NON_RETRYABLE"),
    "overspent": Shape(None, "USAGE_LIMIT_EXCEEDED", limits=_LITTLE),
}
"""The traffic. A `killer` is a fault."""
KILLER: Final = Shape(None, "ATTEMPT_LOST")
