"""Compute the outcome of a claimed attempt: call its pipeline's hooks and its policy, and pack the result.

Every error becomes an outcome. It must not claim or conclude: `perform.py` does, before and after. In: a claimed attempt and its live
pipeline. Out: its outcome, or None if it was cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import CancelledError, Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal, ParamSpec, TypeVar

from flujo_client.config.manager import Settings
from flujo_client.contract.context import DEPTH_OF_OUTPUTS, StoredContext
from flujo_client.contract.envelope import Envelope
from flujo_client.contract.outcome import Event, Fault, Outcome, Usage
from flujo_client.contract.processing import resolve
from flujo_client.errors import AgentError, AgentIOValidationError, PausedException, SnapshotTooLarge
from flujo_client.pipeline.compiled_text import Filling, filling_by
from flujo_client.pipeline.hooks import shown_as
from flujo_client.pipeline.step import Step
from flujo_client.plan.identity import defaults_of
from flujo_client.recipes.agentic_protocol import with_turns
from flujo_client.redact import redact
from flujo_client.serial import Packed, Resolver, Tree, decode, encode, storable_text
from flujo_client.sizes import MAX_REFUSED_ANSWER_BYTES
from flujo_worker.attempts.aros_metrics import tally
from flujo_worker.attempts.around import StepHooks, holding
from flujo_worker.attempts.lease import ActiveAttempt, Lease
from flujo_worker.attempts.resume import perform_resume
from flujo_worker.attempts.step import looks_at_context, perform_step
from flujo_worker.changed_code.code_registry import LoadedPipeline, lack_in
from flujo_worker.changed_code.context_migrations import ContextMigrations, may_be_other
from flujo_worker.concurrency.event_loop import Loop, is_cancelled
from flujo_worker.concurrency.frames import Place
from flujo_worker.domain.conversation import conversation_at
from flujo_worker.domain.retry import draw
from flujo_worker.domain.waiting import FIRST_AGAIN
from flujo_worker.observe.log import emit, filling_of
from flujo_worker.observe.story import Story
from flujo_worker.ports import Reply, Stores
from flujo_worker.runtime.attempt_run import AttemptRun, Done, StageError, Starvation, Work
from flujo_worker.runtime.effects import Effects
from flujo_worker.runtime.fault_text import clean
from flujo_worker.runtime.faults import ErrorCategory, fault_of, guidance_of
from flujo_worker.runtime.question import fetched
from flujo_worker.runtime.write_context import written
from flujo_worker.user_code.hooks import HookCaller

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
Policy = Callable[["Work", "AttemptRun"], Awaitable["Done"]]

POLICIES: Final[Mapping[str, Policy]] = {"step": perform_step, "resume": perform_resume}
"""The function for each kind of work row: a table, so that a new kind needs no other edit."""


_UNBLOCK: Final = "await an async client, make the step a plain function, which runs in a thread, or call `await asyncio.to_thread(…)`"
_LET_GO: Final = "its result is dropped, but its side effects still happen; let asyncio.CancelledError pass"
_IN_A_THREAD: Final = (
    "a plain function runs in a thread, which cannot be stopped: it continues, and its result is dropped; "
    "give the client that it calls its own timeout, or make it async"
)
_STARVED: Final = (
    "the worker process was starved: its event loop was late for {1:.1f} of {0:.1f} s; "
    "give it more CPU, or lower worker.concurrency"
)
AGAIN_S: Final = 2.0
"""The mean of the seconds until a starved attempt begins again."""
_UNTIL_THE_END: Final = "a plain function runs in a thread, which cannot be stopped: it continues until this process ends, and its result is dropped"


@dataclass(frozen=True, slots=True)
class Claimed:
    """An attempt that is this process's to perform.

    Attributes:
        reply: the result of the question it waited with.
        started: since when, by this process's clock.
        inline: its envelope with the values that are stored apart, if they were read already.
    """

    envelope: Envelope
    held: ActiveAttempt
    reply: Reply | None
    started: float
    inline: Envelope | None = None


class Outcomes:
    """The outcomes of the attempts that this process performs.

    Args:
        stores: where answers and stored values are read.
        lease: this process's right to work: an attempt that is cancelled because the lease ends has no outcome.
        loop: the process's event loop.
        threads: where sync agents run.
        hooks: calls the pipelines' hooks, and has the live pipelines of this process.
        settings: limits, timeouts and allowed imports.
        effects: waits for all of them.
        migrations: makes contexts fit.
        check: ends this process if an attempt has broken it: what came of the others is not to be trusted.
    """

    def __init__(  # noqa: PLR0913 - one for each
        self,
        stores: Stores,
        lease: Lease,
        loop: Loop,
        threads: Executor,
        hooks: HookCaller,
        settings: Settings,
        effects: Effects,
        *,
        migrations: ContextMigrations,
        check: Callable[[], object],
    ) -> None:
        self._effects, self._migrations, self._check = effects, migrations, check
        self._stores, self._lease, self._loop, self._threads = stores, lease, loop, threads
        self._hooks, self._catalog, self._settings = hooks, hooks.catalog, settings
        self._resolve = Resolver(settings.allowed_imports)

    async def of(self, claimed: Claimed, entry: LoadedPipeline, story: Story, run: AttemptRun) -> Outcome | None:
        """Perform an attempt, with its pipeline's hooks called before and after; work with nothing to perform is a success."""
        envelope = claimed.envelope
        calls_hooks = envelope.kind in POLICIES or (envelope.kind == "start" and envelope.number < FIRST_AGAIN)
        around = self._around(envelope, entry) if entry.plan.hooks and calls_hooks else None
        stop = None if around is None else await self._effects.call(around.before)
        if stop is not None:
            return Outcome(
                "aborted", fault=stop, latency_s=time.monotonic() - claimed.started, events=story.all_events()
            )
        if envelope.kind not in POLICIES:
            return Outcome("success", events=story.all_events())
        outcome = await self._performed(claimed, entry, story, run)
        if outcome is None or around is None:
            return outcome
        return replace(await self._effects.call(around.after, outcome), events=story.all_events())

    def _around(self, envelope: Envelope, entry: LoadedPipeline) -> StepHooks:
        return StepHooks(self._hooks, self._stores, self._resolve, envelope, entry, entry.node_of(envelope))

    async def _performed(
        self, claimed: Claimed, entry: LoadedPipeline, story: Story, run: AttemptRun
    ) -> Outcome | None:
        envelope, held, started = claimed.envelope, claimed.held, claimed.started
        # Reading and packing large values takes milliseconds: too long for the engine's loop. So do questions to the store.
        is_long = envelope.references or self._is_other(envelope, entry, run)
        carry = self._effects.call if is_long else _here
        counts = False
        try:
            envelope, work = await carry(self._begun, claimed, entry, run)
            done = await self._run(work, run, envelope, held)
            output, context = await carry(self._packed, envelope, work.step, done)
        except CancelledError:
            if held.cancelled or self._lease.is_stopping:
                return None
            held.interrupted |= self._loop.is_given_up
            fault, usage = fault_of(AgentError("the agent cancelled its own task"), "agent"), run.spent
        except StageError as failure:
            counts = run.has_blocked  # although it is interrupted: another worker's loop would be blocked as well
            await self._leave_to_others(claimed, failure.error, failure.usage, run)
            fault, usage = _stage_fault(failure, run), failure.usage
            _emit_left_behind(failure.error)
            failure.__traceback__ = None  # its frames hold it too: a burst of failures would fill the memory
        except Exception as error:  # noqa: BLE001 - any error becomes the outcome's fault
            await self._leave_to_others(claimed, error, run.spent, run)
            fault, usage = fault_of(error, "system"), run.spent
        else:
            latency = time.monotonic() - started
            return _with_events(Outcome("success", output, context, usage=run.spent, latency_s=latency), story, run)
        if (held.interrupted and not counts) or await self._is_returned(claimed, run.starved):
            await self._record_interrupted(claimed, usage, run)
            return None
        if run.paused_in and fault.code == PausedException.code:
            fault = replace(fault, tool=run.paused_in)
        if run.guidance:
            said = redact(run.guidance)
            guidance = said if fault.guidance is None else f"{fault.guidance}\n{said}"
            fault = replace(fault, feedback=f"{fault.feedback}\n{said}", guidance=guidance)
        outcome = replace(failed(fault, usage, started), answer=self._refused_answer(fault, run))
        return _with_events(outcome, story, run)

    def _refused_answer(self, fault: Fault, run: AttemptRun) -> str | None:
        """Return the answer to store, if it was refused for its shape, and answers are stored."""
        if run.raw is None or fault.code != AgentIOValidationError.code or not self._settings.log.answers:
            return None
        return storable_text(clean(run.raw, MAX_REFUSED_ANSWER_BYTES))

    async def _is_returned(self, claimed: Claimed, starvation: Starvation | None) -> bool:
        """Return a starved attempt, which begins again with its number; False if that has happened too often, or another worker has it."""
        if starvation is None:
            return False
        envelope, fence = claimed.envelope, claimed.held.fence or 0
        wait = AGAIN_S * (0.5 + draw(f"{envelope.key} {fence}"))
        data = {"step": envelope.step, "seconds": round(starvation.seconds, 3), "late_s": round(starvation.late_s, 3)}
        event = Event("attempt.starved", {**data, "delay_seconds": round(wait, 3)}, "warning")
        most = self._settings.worker.max_starved
        return await self._effects.call(
            self._stores.attempts.return_starved,
            envelope.key,
            fence,
            wait,
            event,
            most=most,
            claim_id=claimed.held.claim_id,
        )

    async def _record_interrupted(self, claimed: Claimed, usage: Usage, run: AttemptRun) -> None:
        """Record what an attempt has spent that another worker is to begin again."""
        envelope, held = claimed.envelope, claimed.held
        if run.left_in_thread:
            logger.warning("attempt %s: %s", envelope.key, _UNTIL_THE_END)
        spend, spent = self._stores.attempts.spend, run.of_its_model(usage)
        await self._effects.call(spend, envelope.ticket.run, held.claim, spent, held.reserved)

    async def _leave_to_others(self, claimed: Claimed, error: BaseException, usage: Usage, run: AttemptRun) -> None:
        """Raise what this process lacks if the attempt has failed for that: another worker is to begin it again."""
        lack = lack_in(error)
        if lack is not None:
            await self._record_interrupted(claimed, usage, run)
            raise lack

    def _begun(self, claimed: Claimed, entry: LoadedPipeline, run: AttemptRun) -> tuple[Envelope, Work]:
        envelope = claimed.inline or claimed.envelope
        if envelope.references:
            envelope = envelope.inline(fetched(self._stores.blobs, envelope.references))
        run.work = self._work(envelope, claimed.reply, entry, run)
        return envelope, run.work

    def _is_other(self, envelope: Envelope, entry: LoadedPipeline, run: AttemptRun) -> bool:
        """Open the attempt's context; return whether a worker with other fields of its model may have written it."""
        if envelope.context is None:
            return False
        run.stored = run.stored or StoredContext(envelope.context, self._resolve)
        model = entry.pipeline.context_model
        return model is not None and may_be_other(model, run.stored.outline)

    def _fit(self, envelope: Envelope, entry: LoadedPipeline, run: AttemptRun) -> None:
        """Migrate an opened context if it does not fit its model; raises ContextMisfit."""
        migrated = self._migrations.look_again(entry, envelope)
        if migrated is not None:
            migrated.emit()
            run.stored = StoredContext(migrated.context, self._resolve)

    def _work(self, envelope: Envelope, reply: Reply | None, entry: LoadedPipeline, run: AttemptRun) -> Work:
        path = entry.node_of(envelope).path
        step = entry.steps[path]
        if self._is_other(envelope, entry, run):
            self._fit(envelope, entry, run)
        agent = self._catalog.agent(step.agent)
        own_timeout = step.config.timeout_s or defaults_of(agent).get("timeout_s")
        work = Work(
            step=step,
            agent=agent,
            data=with_turns(decode(envelope.input.tree(), resolve=self._resolve), run.stored),
            guidance=envelope.guidance,
            timeout_s=own_timeout or run.settings.agent_timeout_s,
            threads=self._threads,
            processing=resolve(step.processing, envelope.ticket.aros),
            agent_of=self._catalog.agent,
            resources=self._catalog.resources(entry.resources_at(path)),
            reply=reply,
            replies=partial(self._stores.records.replies, envelope.ticket.run, envelope.address, envelope.step),
            resolve=self._resolve,
            conversation=conversation_at(entry.plan, envelope.address),
            invariants=[(shown_as(each), self._catalog.invariant(each)) for each in entry.invariants_at(path)],
        )
        if looks_at_context(work):
            _ = run.context  # now, in a thread if it is large
        return work

    async def _run(self, work: Work, run: AttemptRun, envelope: Envelope, held: ActiveAttempt) -> Done:
        late = partial(self._spend_late, envelope, held, run)
        performing = _perform(POLICIES[envelope.kind], work, run, filling_of(run.settings.template))
        future = self._loop.submit(performing, envelope.key, late)
        held.on_cancel.append(future.cancel)
        held.on_interrupt.append(partial(self._loop.interrupt, future))
        if held.cancelled:
            future.cancel()
        if held.interrupted:
            self._loop.interrupt(future)
        try:
            return await self._effects.result(future)
        finally:
            self._check()
            if (place := future.blocked_at) is not None:
                run.has_blocked = True
                emit("step.blocked_loop", "warning", function=place.function, place=place.at, advice=_UNBLOCK)

    def _spend_late(self, envelope: Envelope, held: ActiveAttempt, run: AttemptRun, _: asyncio.Task[Done]) -> None:
        """Record what an attempt has spent that was left behind and has ended at last. The rest of its outcome is dropped."""
        spend, spent = self._stores.attempts.spend, run.of_its_model(run.spent)
        self._threads.submit(spend, envelope.ticket.run, held.claim, spent, held.reserved)

    def _packed(self, envelope: Envelope, step: Step, done: Done) -> tuple[Packed, Packed | None]:
        context, depth = done.context, DEPTH_OF_OUTPUTS if isinstance(done.context, StoredContext) else 0
        made = encode(done.output, path=f"output of step '{envelope.step}'", depth=depth)
        output = self._pack(made, f"output of step '{envelope.step}'", like=envelope.input)
        if context is None:
            return output, None
        if isinstance(context, StoredContext) and _is_extended(context, step, made, done):
            context = self._bounded(context.packed(), "context")
        else:
            if isinstance(context, StoredContext):
                context = written(step, done.output, context.live(), done.field, done.item)
            context = self._pack(encode(context, path="context"), "context", like=envelope.context)
        if context == envelope.context:
            return output, None
        if context.parts:
            _ = context.digest  # while this is in a thread
        return output, context

    def _pack(self, tree: Tree, what: str, like: Packed | None) -> Packed:
        """Pack a tree; one that is too large fails the step, and trying again would not help."""
        return self._bounded(Packed.of(tree, like=(like,)), what)

    def _bounded(self, packed: Packed, what: str) -> Packed:
        most = self._settings.limits.snapshot_max_bytes
        if packed.length > most:
            raise SnapshotTooLarge(f"{packed.length:,} bytes of JSON; at most {most:,} can be sent", path=what)
        return packed


def _is_extended(context: StoredContext, step: Step, output: Tree, done: Done) -> bool:
    """Add the step's output to a context that nothing has looked at; return False if that takes the live one."""
    if done.field is not None and not context.add_item(done.field, encode(done.item, path="context"), type(done.item)):
        return False
    return context.add_output(step.name, output)


async def _here(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return function(*args, **kwargs)


def failed(fault: Fault, usage: Usage, started: float) -> Outcome:
    """Make the outcome of a fault; `started` is when the attempt was, by this process's clock."""
    kind: Literal["aborted", "failure"] = "aborted" if fault.category == ErrorCategory.CONTROL_FLOW else "failure"
    return Outcome(kind, fault=fault, usage=usage, latency_s=time.monotonic() - started)


def _stage_fault(failure: StageError, run: AttemptRun) -> Fault:
    """Return the fault of a stage that failed."""
    fault = fault_of(
        failure.error,
        failure.during,
        has_asked=run.has_called_agent or failure.usage.requests > 0,
        retry_bugs=None if run.work is None else run.work.step.config.retry_bugs,
    )
    if fault.details.keys() & {"status", "rule"} and (model := run.model_of(failure.error)) is not None:
        fault = replace(fault, details={**fault.details, "model": model})
    if failure.error is run.of_tool:
        fault = replace(fault, guidance=None)
    elif failure.error is run.verdict:
        fault = replace(fault, guidance=guidance_of(failure.error, judges=True))
    run.starved = run.starvation(failure.error)
    if run.starved is not None:
        return replace(fault, suggestion=_STARVED.format(*run.starved))
    is_left = run.left_in_thread and isinstance(failure.error, TimeoutError)
    return replace(fault, suggestion=_IN_A_THREAD) if is_left else fault


def _emit_left_behind(error: BaseException) -> None:
    place: Place | None = getattr(error, "flujo_left_behind", None)
    if place is not None:
        emit("step.left_behind", "warning", function=place.function, place=place.at, advice=_LET_GO)


def _with_events(outcome: Outcome, story: Story, run: AttemptRun) -> Outcome:
    """Put the attempt's events into its outcome, with what is counted from them."""
    return replace(
        outcome,
        usage=run.of_its_model(outcome.usage),
        metadata=tally(story) | run.notes,
        events=story.all_events(),
        corrections=tuple(run.corrections),
    )


async def _perform(policy: Policy, work: Work, run: AttemptRun, filling: Filling) -> Done:
    """Run a policy.

    Its exceptions are attributed to the present stage, with the usage so far. That includes all exceptions: a `sys.exit()` of user code
    would end the event loop, its own cancellation the attempt. Only a cancellation of the attempt itself passes through.

    Raises:
        StageError: the stage that failed, and its exception.
    """
    try:
        with filling_by(filling):
            return await holding(work, run, policy)
    except BaseException as error:
        run.spent += run.take(error)
        if is_cancelled():
            raise
        raise run.failed(error) from error
