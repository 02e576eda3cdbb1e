"""From what is recorded to what a caller gets: run, scopes and attempts in, `PipelineResult` with its step results out. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flujo_client.contract.approval import Approval
from flujo_client.contract.context import ContextState, PipelineContext
from flujo_client.contract.records import AttemptRecord, RunRecord, ScopeRecord
from flujo_client.contract.results import Failed, Paused, PipelineResult, StepResult, track_parallel_costs
from flujo_client.contract.tree import NodeRows, SequenceRows, arrange, seconds_between
from flujo_client.errors import SerializationError
from flujo_client.plan.kinds import CACHE, FALLBACK, LOOP
from flujo_client.serial import Packed, decode

Fetch = Callable[[Collection[str]], Mapping[str, Packed]]
Resolve = Callable[[str], Any]

ENDED = ("succeeded", "failed", "cancelled")
NO_AGENT = StepResult(name="")
"""The attempts of a container without an agent."""


def read_result(
    run: RunRecord,
    attempts: Sequence[AttemptRecord],
    scopes: Sequence[ScopeRecord] = (),
    *,
    resolve: Resolve,
    fetch: Fetch,
    questions: Sequence[Approval] = (),
) -> PipelineResult:
    """Make a run's result of its rows, with a StepResult for each node that came to an end.

    Containers have the results of their children inside. One that a run's end left open is among them, and failed. The scopes were read after the
    attempts. `resolve` finds the classes that values were made of; a value whose class is not to be had here comes back as plain data. `fetch`
    reads values that the rows only point at. The questions are those that are open, in the run and its child runs. Raises SerializationError if
    the run succeeded and its output cannot be read.
    """
    if run.status == "succeeded" and run.output is None and run.unreadable is not None:
        raise SerializationError(f"run {run.id} is unreadable: {run.unreadable}")
    reading = _Reading(run, resolve, fetch)
    error = None if run.reason is None else Failed(message=run.reason)
    return PipelineResult(
        run_id=run.id,
        run_status=run.status,
        step_history=reading.nodes(arrange(attempts, scopes)),
        total_cost_usd=run.cost_usd,
        total_tokens=run.tokens,
        final_pipeline_context=_as_ended(reading.value(run.context), run),
        output=reading.value(run.output),
        error=error if run.error is None else Failed.of(run.error),
        pauses=[
            Paused(message=each.message, state_token=each.token, step=each.step, address=each.address)
            for each in questions
            if run.status == "paused"
        ],
    )


def references(run: RunRecord, attempts: Sequence[AttemptRecord], scopes: Sequence[ScopeRecord]) -> set[str]:
    """Return the digests of the values that a result needs and its rows only refer to."""
    closed = (value for scope in scopes if scope.status == "succeeded" for value in (scope.output, scope.context))
    values = (run.output, run.context, *(row.output for row in attempts), *closed)
    return {each.digest for each in values if each is not None and each.is_reference}


@dataclass(frozen=True, slots=True)
class _Reading:
    """One run being read."""

    run: RunRecord
    resolve: Resolve
    fetch: Fetch
    contexts: dict[str, Any] = field(default_factory=dict)

    def nodes(self, nodes: Sequence[NodeRows]) -> list[StepResult]:
        ended = filter(self._has_ended, nodes)
        return [self._container(node) if node.scope else self._step(node.tries) for node in ended]

    def _has_ended(self, node: NodeRows) -> bool:
        if node.scope is not None:
            return node.scope.status in ENDED or not self.run.is_live
        return bool(node.tries) and node.tries[-1].status in ENDED

    def _step(self, tries: Sequence[AttemptRecord]) -> StepResult:
        """Make the result of what its last attempt gave and what all of them spent."""
        last = tries[-1]
        return StepResult(
            name=last.step,
            output=self.value(last.output),
            success=last.status == "succeeded",
            attempts=last.number,
            latency_s=sum(each.latency_s for each in tries),
            token_counts=sum(each.tokens for each in tries),
            cost_usd=sum(each.cost_usd for each in tries),
            feedback=_feedback(last),
            metadata_=last.metadata,
        )

    def _container(self, node: NodeRows) -> StepResult:
        """Make a container's result; what a router's agent gave and spent is the router's."""
        assert node.scope is not None
        if node.scope.kind in (FALLBACK.name, CACHE.name):
            return self._wrapped(node.scope, node.children)
        own = self._step(node.tries) if node.tries else NO_AGENT
        children = [self._scope(each.scope, self.nodes(each.nodes), NO_AGENT) for each in node.children]
        result = self._scope(node.scope, children, own)
        if node.scope.kind == LOOP.name:
            result.attempts = len(children)
        return _without_failed(result, own) if node.is_fan_out else result

    def _wrapped(self, scope: ScopeRecord, children: Sequence[SequenceRows]) -> StepResult:
        """Return the step's own result if it needed no fallback, or was run in spite of the cache; else one under its name for all tries."""
        inside = [each for child in children for each in self.nodes(child.nodes)]
        last, result = inside[-1] if inside else NO_AGENT, self._scope(scope, inside, NO_AGENT)
        is_cache = scope.kind == CACHE.name
        if inside and last.success == result.success and (is_cache or len(children) == len(inside) == 1):
            return last
        changes: dict[str, Any] = {"attempts": sum(each.attempts for each in inside)}
        if not is_cache:
            changes["latency_s"] = sum(each.latency_s for each in inside)
            changes["metadata_"] = last.metadata_ | result.metadata_
        return result.model_copy(update=changes)

    def _scope(self, scope: ScopeRecord, inside: list[StepResult], own: StepResult) -> StepResult:
        """Return the result of a container or a child of one, by the same rules for all."""
        has_succeeded, metadata = scope.status == "succeeded", {**own.metadata_, **scope.metadata}
        feedback = metadata.pop("feedback", None)
        return StepResult(
            name=scope.name or scope.address,
            output=self.value(scope.output) if has_succeeded else None,
            success=has_succeeded,
            attempts=own.attempts,
            latency_s=own.latency_s + (seconds_between(scope.opened_at, scope.closed_at or self.run.ended_at) or 0.0),
            token_counts=own.token_counts + scope.tokens + sum(each.token_counts for each in inside),
            cost_usd=own.cost_usd + scope.cost_usd + sum(each.cost_usd for each in inside),
            feedback=feedback if has_succeeded and scope.fault is None else self._why(scope, inside),
            branch_context=self.context(scope.context) if has_succeeded else None,
            metadata_=metadata,
            step_history=inside,
        )

    def _why(self, scope: ScopeRecord, inside: Sequence[StepResult]) -> str | None:
        """Return why a scope failed: by its own fault, by the first thing in it that did, or by the run's end."""
        if scope.fault is not None:
            return scope.fault.feedback
        failed = next((each.feedback for each in inside if not each.success), None)
        if failed is not None or scope.status in ENDED:
            return failed or scope.status
        return self.run.error.feedback if self.run.error is not None else self.run.reason

    def context(self, packed: Packed | None) -> Any:
        """Return the context that a scope left. Equal ones are read once, because many branches may leave the same."""
        if packed is None:
            return None
        if packed.digest not in self.contexts:
            self.contexts[packed.digest] = self.value(packed)
        return self.contexts[packed.digest]

    def value(self, packed: Packed | None) -> Any:
        if packed is None:
            return None
        if packed.is_reference:
            packed = self.fetch([packed.digest])[packed.digest]
        tree = packed.tree()
        try:
            return decode(tree, resolve=self.resolve)
        except SerializationError:
            return plain(tree)


def _as_ended(context: Any, run: RunRecord) -> Any:
    """Return the context of a run with how it ended: its status, and the reason why a background run failed.

    The stored context goes on with a retried run, so that it says neither. A model's own field `status` is left as it is.
    """
    if run.is_live or not isinstance(context, PipelineContext):
        return context
    ending: dict[str, Any] = {}
    if isinstance(context.status, ContextState):
        status = ContextState.COMPLETED if run.status == "succeeded" else ContextState.FAILED
        ending = {"status": status, "pause_message": None}
    if run.is_background and run.status == "failed":
        ending["background_error"] = run.error.feedback if run.error else run.reason
        ending["background_error_category"] = run.error.category if run.error else run.status
    return context.model_copy(update=ending)


def _without_failed(result: StepResult, own: StepResult) -> StepResult:
    """Move the spend of failed branches from a fan-out's figures to a separate field."""
    cost, tokens = track_parallel_costs(result.step_history)
    failed = [each for each in result.step_history if not each.success]
    reported = {
        "failed_branch_cost_usd": sum(each.cost_usd for each in failed),
        "failed_branch_tokens": sum(each.token_counts for each in failed),
    }
    changes = {"cost_usd": own.cost_usd + cost, "token_counts": own.token_counts + tokens}
    return result.model_copy(update=changes | {"metadata_": result.metadata_ | (reported if failed else {})})


def _feedback(last: AttemptRecord) -> str | None:
    if last.fault is not None:  # of an attempt that succeeded: what cannot be read of its row
        return last.fault.feedback
    return None if last.status == "succeeded" else last.reason


def plain(tree: Any) -> Any:
    """Return what a tree holds, without the classes it was made of."""
    if isinstance(tree, list):
        return [plain(each) for each in tree]
    if not isinstance(tree, dict):
        return tree
    if "$" in tree:
        return plain(tree.get("v"))
    return {key: plain(value) for key, value in tree.items()}
