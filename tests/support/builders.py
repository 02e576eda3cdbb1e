"""Small makers of the values the engine speaks: pipelines, recorded runs, outcomes, decisions. Pure; no store, no clock."""

from typing import Any

from flujo_client.address import new_run_id
from flujo_client.config.models import SizeLimits
from flujo_client.contract.envelope import Envelope
from flujo_client.contract.outcome import Fault, Outcome, Usage
from flujo_client.contract.records import NewRun
from flujo_client.pipeline.compile import compile_plan
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.step import Step, StepConfig
from flujo_client.pipeline.submit import Order, new_run
from flujo_client.plan.plan import Backoff
from flujo_client.serial import Packed, encode
from flujo_worker.domain.decide import decide
from flujo_worker.domain.values import AttemptReport, Decision
from flujo_worker.ports import Member

BACKOFF = Backoff(base_s=4.0, jitter=0.0)
SPENT = Usage(input_tokens=10, output_tokens=5, requests=1, cost_usd=0.25)


def echo(data: Any) -> Any:
    """The agent of steps whose work does not matter."""
    return data


def pipeline_of(*names: str, agent: Any = echo, max_retries: int = 1, **rest: Any) -> Pipeline:
    """Steps of these names, all alike; one step `a` when none is named."""
    config = StepConfig(max_retries=max_retries)
    return Pipeline([Step(name, agent, config=config, **rest) for name in names or ("a",)], name="shapes")


def enqueued(pipeline: Pipeline | None = None, value: Any = "in", *, inline: int = 65_536, **order: Any) -> NewRun:
    """What enqueue would record. `order` goes to `Order`."""
    plan = compile_plan(pipeline or pipeline_of())
    asked = Order(order.pop("run_id", None) or new_run_id(1_700_000_000.0), **order)
    return new_run(plan, "shapes:pipeline", value, asked, size=SizeLimits(snapshot_inline_bytes=inline), allowed=("*",))


def member(name: str) -> Member:
    """A worker process."""
    return Member(name, "host", 1, "test", 4)


def packed(value: Any) -> Packed:
    """A value as an attempt would pack it."""
    return Packed.of(encode(value))


def succeeded(output: Any = "out", context: Any = None, **rest: Any) -> Outcome:
    """A success."""
    return Outcome("success", packed(output), None if context is None else packed(context), **rest)


def failed(category: str = "agent", *, retryable: bool = True, feedback: str = "it broke", **rest: Any) -> Outcome:
    """A failure; one that may be tried again unless said otherwise."""
    fault = Fault(category, "ValueError", "no", feedback, retryable=retryable, **rest)
    return Outcome("failure", fault=fault, usage=SPENT)


def decided(
    new: NewRun, outcome: Outcome, *, fence: int = 1, at: Envelope | None = None, claim_id: str | None = None
) -> Decision:
    """Decide what follows this outcome of a run's attempt `at`, the first by default, under this claim."""
    deciding = decide(new.plan, AttemptReport(at or new.first, fence, outcome, claim_id), backoff=BACKOFF)
    try:
        asked = next(deciding)
    except StopIteration as done:
        decision: Decision = done.value
        return decision
    raise AssertionError(f"a sequence of steps asks nothing, and here is {asked}")


def following(decision: Decision) -> Envelope:
    """The envelope of the attempt that a decision makes."""
    [after] = envelopes(decision)
    return after


def envelopes(decision: Decision) -> list[Envelope]:
    """The envelopes of all the attempts that a decision makes, held ones too."""
    return [decision.envelope_of(after) for after in decision.next]
