"""From what is recorded to what a caller gets: run and attempts in, `PipelineResult` and its step results out. Pure."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from flujo_client.contract.results import Failed, PipelineResult, StepResult
from flujo_client.errors import SerializationError
from flujo_client.serial import Packed, decode

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from flujo_client.contract.outcome import Fault
    from flujo_client.contract.run import AttemptRecord, RunRecord

    Fetch = Callable[[Collection[str]], Mapping[str, Packed]]
    Resolve = Callable[[str], Any]

ENDED = ("succeeded", "failed", "cancelled")


def read_result(run: RunRecord, attempts: Sequence[AttemptRecord], *, resolve: Resolve, fetch: Fetch) -> PipelineResult:
    """Make a run's result of its rows.

    Args:
        run: the run.
        attempts: all its attempts, in the order they were made.
        resolve: finds the classes that values were made of; a value whose class is not to be had here comes back as plain data.
        fetch: reads values that the rows only point at.
    """
    history = read_history(attempts, resolve=resolve, fetch=fetch)
    return PipelineResult(
        run_id=run.id,
        run_status=run.status,
        step_history=history,
        total_cost_usd=run.cost_usd,
        total_tokens=run.tokens,
        final_pipeline_context=_value(run.context, resolve, fetch),
        output=_value(run.output, resolve, fetch),
        error=_failed(run.error, run.reason),
    )


def read_history(attempts: Sequence[AttemptRecord], *, resolve: Resolve, fetch: Fetch) -> list[StepResult]:
    """One StepResult for each step that came to an end: what its last attempt gave, what all of them spent (U-18)."""
    steps = (list(tries) for _, tries in groupby(attempts, key=lambda each: (each.address, each.step)))
    return [_step_result(tries, resolve, fetch) for tries in steps if tries[-1].status in ENDED]


def _step_result(tries: Sequence[AttemptRecord], resolve: Resolve, fetch: Fetch) -> StepResult:
    last = tries[-1]
    return StepResult(
        name=last.step,
        output=_value(last.output, resolve, fetch),
        success=last.status == "succeeded",
        attempts=last.number,
        latency_s=sum(each.latency_s for each in tries),
        token_counts=sum(each.tokens for each in tries),
        cost_usd=sum(each.cost_usd for each in tries),
        feedback=_feedback(last),
        metadata_=last.metadata,
    )


def _feedback(last: AttemptRecord) -> str | None:
    if last.status == "succeeded":
        return None
    return last.fault.feedback if last.fault is not None else last.reason


def _failed(fault: Fault | None, reason: str | None) -> Failed | None:
    if fault is None:
        return None if reason is None else Failed(message=reason)
    return Failed(
        type_name=fault.type_name,
        message=fault.message,
        code=fault.code,
        category=fault.category,
        suggestion=fault.suggestion,
    )


def _value(packed: Packed | None, resolve: Resolve, fetch: Fetch) -> Any:
    if packed is None:
        return None
    if packed.is_reference:
        packed = fetch([packed.digest])[packed.digest]
    tree = packed.tree()
    try:
        return decode(tree, resolve=resolve)
    except SerializationError:
        return _plain(tree)


def _plain(tree: Any) -> Any:
    """What a tree holds, without the classes it was made of."""
    if isinstance(tree, list):
        return [_plain(each) for each in tree]
    if not isinstance(tree, dict):
        return tree
    if "$" in tree:
        return _plain(tree.get("v"))
    return {key: _plain(value) for key, value in tree.items()}
