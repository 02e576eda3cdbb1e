"""Call an attempt's hooks, before it and once its outcome is known (ADR 22), and hold its pipeline's resources open meanwhile.

A hook gets its own decoded values, must not change what is reported, and can only turn an outcome into an abort. Resources are made and entered
before the attempt, and exited after it however it ends; an entered manager is exited once, even if its entry is no longer awaited. Sync code runs
in threads, which may differ for entry and exit.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from functools import partial
from typing import Any

from flujo_client.contract.context import StoredContext
from flujo_client.contract.envelope import Envelope
from flujo_client.contract.hooks import OnStepFailurePayload, Payload, PostStepPayload, PreRunPayload, PreStepPayload
from flujo_client.contract.outcome import Fault, Outcome
from flujo_client.contract.results import StepResult
from flujo_client.frozen import frozen
from flujo_client.pipeline.resources import is_async_manager, is_factory, is_manager
from flujo_client.plan.plan import Node
from flujo_client.recipes.agentic_protocol import with_turns
from flujo_client.serial import Packed, decode
from flujo_worker.changed_code.code_registry import LoadedPipeline
from flujo_worker.concurrency.event_loop import is_async, within
from flujo_worker.concurrency.threads import carried
from flujo_worker.domain.human import asks_again
from flujo_worker.domain.retry import may_retry
from flujo_worker.observe.log import emit
from flujo_worker.ports import Stores
from flujo_worker.runtime.attempt_run import AttemptRun, Done, Work
from flujo_worker.runtime.faults import fault_of
from flujo_worker.runtime.question import fetched
from flujo_worker.user_code.hooks import HookCaller

logger = logging.getLogger(__name__)
Leave = Callable[[BaseException | None], Awaitable[Any]]


@frozen
class StepHooks:
    """One attempt, as hooks see it."""

    hooks: HookCaller
    stores: Stores
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
        kind: type[Payload] = PostStepPayload if outcome.kind == "success" else OnStepFailurePayload
        if outcome.kind != "success" and not (outcome.kind == "failure" and self._is_last(outcome.fault)):
            return outcome
        stop = self._call_hooks(self._own, kind, lambda: kind(**self._step_result(outcome)))
        return outcome if stop is None else replace(outcome, kind="aborted", fault=stop, output=None, context=None)

    @property
    def _own(self) -> Sequence[Any]:
        return self.entry.hooks_at(self.envelope.ticket.root, self.node.path)

    def _is_last(self, fault: Fault | None) -> bool:
        asked_again = fault is not None and asks_again(fault)
        return not (asked_again or may_retry(fault, self.envelope.tries, self.node.max_attempts))

    def _call_hooks(self, hooks: Sequence[Any], kind: type[Payload], make: Callable[[], Payload]) -> Fault | None:
        called = self.hooks.call(hooks, kind, make)
        for event in called.events:
            emit(event.name, event.level, **event.data)
        return called.stop

    def _pre_run(self) -> Payload:
        return PreRunPayload(**self._known(self.envelope.context), initial_input=self._value(self.envelope.input))

    def _pre_step(self) -> Payload:
        packed = self.envelope.context
        stored = None if packed is None else StoredContext(self._fetch(packed), self.resolve)
        given = with_turns(self._value(self.envelope.input), stored)
        payload = self._known(packed) | self._place()
        return PreStepPayload(**payload, step=self.entry.steps[self.node.path], step_input=given)

    def _step_result(self, outcome: Outcome) -> dict[str, Any]:
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
        ticket, value = self.envelope.ticket, self._value(context)
        return {"run_id": ticket.run, "pipeline_name": self.entry.name_at(ticket.root), "context": value}

    def _place(self) -> dict[str, Any]:
        return {"step_name": self.envelope.step, "address": self.envelope.address}

    def _value(self, packed: Packed | None) -> Any:
        return None if packed is None else decode(self._fetch(packed).tree(), resolve=self.resolve)

    def _fetch(self, packed: Packed) -> Packed:
        return fetched(self.stores.blobs, (packed,))[packed.digest] if packed.is_reference else packed


async def holding(work: Work, run: AttemptRun, policy: Callable[[Work, AttemptRun], Awaitable[Done]]) -> Done:
    """Run a policy while its resources are open. Entering them may take the attempt's `timeout_s`, and leaving them as long again.

    Raises BaseException: the policy's own; else what making, entering or leaving raised, in the domain `system`.
    """
    run.enter("system")
    async with within(work.timeout_s, run.failed):
        run.resources, leave = await _enter(await _make(work.resources, work.threads), work.threads)
    try:
        done = await policy(work, run)
    except BaseException as error:
        await _leave_after(leave, error, work, run)
        raise
    run.enter("system")
    async with within(work.timeout_s, run.failed):
        await leave(None)
    return done


async def _make(thing: Any, threads: Executor) -> Any:
    """Call a factory; a class of async managers is called on the event loop, which its instances may need."""
    if not is_factory(thing):
        return thing
    on_loop = is_async(thing) or (inspect.isclass(thing) and is_async_manager(thing))
    made = thing() if on_loop else await asyncio.wrap_future(_in_thread(threads, thing))
    return await made if inspect.isawaitable(made) else made


async def _enter(thing: Any, threads: Executor) -> tuple[Any, Leave]:
    """Enter a manager; return its resources, and the function that exits it and cannot turn a failure into a success."""
    if is_async_manager(type(thing)):
        given = await thing.__aenter__()
        return thing if given is None else given, lambda error: thing.__aexit__(*_details(error))
    if is_manager(type(thing)):
        given = await _enter_in_thread(thing, threads)
        exits = partial(_in_thread, threads, thing.__exit__)
        return thing if given is None else given, lambda error: asyncio.wrap_future(exits(*_details(error)))
    return thing, _nothing


async def _nothing(_: BaseException | None) -> None:
    """Exit nothing."""


async def _enter_in_thread(manager: Any, threads: Executor) -> Any:
    entering = _in_thread(threads, manager.__enter__)
    try:
        return await asyncio.wrap_future(entering)
    except BaseException as error:
        entering.add_done_callback(partial(_leave_late, manager, error, threads))
        raise


def _leave_late(manager: Any, error: BaseException, threads: Executor, entering: Future[Any]) -> None:
    """Exit a manager whose entry was no longer awaited; a running thread cannot be stopped."""
    if not entering.cancelled() and entering.exception() is None:
        threads.submit(manager.__exit__, *_details(error))


async def _leave_after(leave: Leave, error: BaseException, work: Work, run: AttemptRun) -> None:
    """Exit after a failure, which stays the attempt's: a further exception of the exit is only logged."""
    try:
        async with within(work.timeout_s, lambda _: run.failed(error)):
            await leave(error)
    except BaseException as own:  # noqa: BLE001 - the failure before it is reported
        if own is not error:
            feedback = fault_of(own, "system").feedback
            logger.warning("step '%s': its resources could not be closed: %s", work.step.name, feedback)


def _details(error: BaseException | None) -> tuple[Any, Any, Any]:
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


def _in_thread(threads: Executor, call: Callable[..., Any], *args: Any) -> Future[Any]:
    return threads.submit(carried(partial(call, *args)))
