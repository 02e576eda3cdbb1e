"""The hook calls around an attempt: before it is performed, and once its outcome is known (ADR 22).

It must not change what it reports: a hook gets its own decoded values. In: the attempt's message, then its outcome. Out: why the attempt is
not to be performed, then the outcome, which a hook can only turn into an abort.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flujo_client.contract.context import StoredContext
from flujo_client.contract.envelope import Envelope
from flujo_client.contract.hooks import OnStepFailurePayload, Payload, PostStepPayload, PreRunPayload, PreStepPayload
from flujo_client.contract.outcome import Fault, Outcome
from flujo_client.contract.results import StepResult
from flujo_client.plan.plan import Node
from flujo_client.recipes.agentic_protocol import with_turns
from flujo_client.serial import Packed, decode
from flujo_worker.changed_code.code_registry import LoadedPipeline
from flujo_worker.domain.human import asks_again
from flujo_worker.domain.retry import may_retry
from flujo_worker.observe.log import emit
from flujo_worker.ports import Ledger
from flujo_worker.runtime.question import fetched
from flujo_worker.user_code.hooks import HookCaller


@dataclass(frozen=True, slots=True)
class StepHooks:
    """One attempt, as hooks see it."""

    hooks: HookCaller
    ledger: Ledger
    resolve: Callable[[str], Any]
    envelope: Envelope
    entry: LoadedPipeline
    node: Node

    def before(self) -> Fault | None:
        """Call the hooks for the run's start, if this attempt starts it, and for the step's; return the fault of a hook that stops it."""
        envelope = self.envelope
        stop = None
        if envelope.begins_run:
            stop = self._call_hooks(self.entry.hooks_of_run(envelope.ticket.root), PreRunPayload, self._pre_run)
        if stop is None and envelope.kind == "step" and envelope.number == 1:
            stop = self._call_hooks(self._own, PreStepPayload, self._pre_step)
        return stop

    def after(self, outcome: Outcome) -> Outcome:
        """Call the hooks with the step's outcome, if this was its last attempt."""
        if outcome.kind == "success":
            stop = self._call_hooks(self._own, PostStepPayload, lambda: PostStepPayload(**self._came_of(outcome)))
        elif outcome.kind == "failure" and self._is_last(outcome.fault):
            stop = self._call_hooks(
                self._own, OnStepFailurePayload, lambda: OnStepFailurePayload(**self._came_of(outcome))
            )
        else:
            return outcome
        return outcome if stop is None else replace(outcome, kind="aborted", fault=stop, output=None, context=None)

    @property
    def _own(self) -> Sequence[Any]:
        return self.entry.hooks_at(self.envelope.ticket.root, self.node.path)

    def _is_last(self, fault: Fault | None) -> bool:
        asked_again = fault is not None and asks_again(fault)
        return not (asked_again or may_retry(fault, self.envelope.number, self.node.max_attempts))

    def _call_hooks(self, hooks: Sequence[Any], kind: type[Payload], make: Callable[[], Payload]) -> Fault | None:
        called = self.hooks.call(hooks, kind, make)
        for event in called.events:
            emit(event.name, event.level, **event.data)
        return called.stop

    def _pre_run(self) -> Payload:
        return PreRunPayload(**self._known(self.envelope.context), initial_input=self._value(self.envelope.input))

    def _pre_step(self) -> Payload:
        payload = self._known(self.envelope.context) | self._place()
        return PreStepPayload(**payload, step=self.entry.steps[self.node.path], step_input=self._input)

    def _came_of(self, outcome: Outcome) -> dict[str, Any]:
        usage, fault = outcome.usage, outcome.fault
        result = StepResult(
            name=self.envelope.step,
            output=self._value(outcome.output),
            success=outcome.kind == "success",
            attempts=self.envelope.number,
            latency_s=outcome.latency_s,
            token_counts=usage.input_tokens + usage.output_tokens,
            cost_usd=usage.cost_usd,
            feedback=None if fault is None else fault.feedback,
            metadata_=dict(outcome.metadata),
        )
        return self._known(outcome.context or self.envelope.context) | self._place() | {"step_result": result}

    def _known(self, context: Packed | None) -> dict[str, Any]:
        ticket = self.envelope.ticket
        return {
            "run_id": ticket.run,
            "pipeline_name": self.entry.name_at(ticket.root),
            "context": self._value(context),
        }

    def _place(self) -> dict[str, Any]:
        return {"step_name": self.envelope.step, "address": self.envelope.address}

    @property
    def _input(self) -> Any:
        context = self.envelope.context
        stored = None if context is None else StoredContext(self._fetched(context), self.resolve)
        return with_turns(self._value(self.envelope.input), stored)

    def _value(self, packed: Packed | None) -> Any:
        return None if packed is None else decode(self._fetched(packed).tree(), resolve=self.resolve)

    def _fetched(self, packed: Packed) -> Packed:
        return fetched(self.ledger, (packed,))[packed.digest] if packed.is_reference else packed
