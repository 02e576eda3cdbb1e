"""Compute the outcome of a claimed attempt: call its pipeline's hooks and its policy, and pack the result. Every error becomes an outcome."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import CancelledError
from dataclasses import replace
from functools import partial
from typing import Final, Literal

from flujo_client.contract.context import DEPTH_OF_OUTPUTS, StoredContext
from flujo_client.contract.envelope import Envelope
from flujo_client.contract.outcome import Event, Fault, Outcome, Usage
from flujo_client.errors import AgentError, AgentIOValidationError, PausedException, SnapshotTooLarge
from flujo_client.pipeline.step import Step
from flujo_client.plan.identity import defaults_of
from flujo_client.recipes.agentic_protocol import with_turns
from flujo_client.redact import redact
from flujo_client.serial import Packed, Tree, decode, encode, storable_text
from flujo_client.sizes import MAX_REFUSED_ANSWER_BYTES
from flujo_worker.attempts.around import StepHooks, holding
from flujo_worker.attempts.attempt import AttemptServices, StagedAttempt
from flujo_worker.attempts.needs import Needs
from flujo_worker.attempts.resume import perform_resume
from flujo_worker.attempts.shape_events import tally
from flujo_worker.attempts.step import StepAttempt
from flujo_worker.changed_code.code_registry import lack_in
from flujo_worker.changed_code.context_migrations import ContextMigrations, may_be_other
from flujo_worker.concurrency.event_loop import is_cancelled
from flujo_worker.concurrency.frames import Place
from flujo_worker.domain.asking import message_of, question_of
from flujo_worker.domain.retry import draw
from flujo_worker.domain.waiting import FIRST_AGAIN
from flujo_worker.runtime.attempt_run import AttemptRun, Done, StageError, Work
from flujo_worker.runtime.fault_text import clean
from flujo_worker.runtime.faults import ErrorCategory, fault_of, guidance_of
from flujo_worker.runtime.http_errors import is_timeout
from flujo_worker.runtime.question import fetched
from flujo_worker.runtime.write_context import written

logger = logging.getLogger(__name__)

Policy = Callable[[Work, AttemptRun], Awaitable[Done]]

POLICIES: Final[Mapping[str, Policy]] = {
    "step": lambda work, run: StepAttempt(work, run).perform(),
    "resume": perform_resume,
}
"""The function for each kind of work row: a table, so that a new kind needs no other edit."""

_UNBLOCK: Final = "await an async client, make the step a plain function, which runs in a thread, or call `await asyncio.to_thread(…)`"
_LET_GO: Final = "its result is dropped, but its side effects still happen; let asyncio.CancelledError pass"
_IN_A_THREAD: Final = "a plain function runs in a thread, which cannot be stopped: it continues, and its result is dropped; give the client that it calls its own timeout, or make it async"
_STARVED: Final = "the worker process was starved: its event loop was late for {1:.1f} of {0:.1f} s; give it more CPU, or lower worker.concurrency"
AGAIN_S: Final = 2.0
"""The mean of the seconds until a starved attempt begins again."""
_UNTIL_THE_END: Final = "a plain function runs in a thread, which cannot be stopped: it continues until this process ends, and its result is dropped"


class Outcomes:
    """The outcomes of the attempts that this process performs; one that is cancelled because the lease ends has none.

    `check` ends this process if an attempt has broken it, because the outcomes of other attempts are then unreliable.
    """

    def __init__(
        self, services: AttemptServices, migrations: ContextMigrations, needs: Needs, check: Callable[[], object]
    ) -> None:
        self._migrations, self._needs, self._check = migrations, needs, check
        self._stores, self._lease, self._effects = services.stores, services.lease, services.effects
        self._loop, self._threads, self._hooks = services.loop, services.threads, services.hooks
        self._settings, self._resolve = services.settings, services.resolve

    async def perform(self, attempt: StagedAttempt) -> Outcome | None:
        """Perform an attempt, with its pipeline's hooks called before and after; work with nothing to perform is a success."""
        envelope, kind = attempt.envelope, attempt.envelope.kind
        calls_hooks = kind in POLICIES or (kind == "start" and envelope.number < FIRST_AGAIN)
        around = None
        if attempt.entry.plan.hooks and calls_hooks:
            node = attempt.entry.node_of(envelope)
            around = StepHooks(self._hooks, self._stores, self._resolve, envelope, attempt.entry, node)
        stop = None if around is None else await self._effects.call(attempt.inside, around.before)
        if stop is not None:
            latency_s = time.monotonic() - attempt.started
            return Outcome("aborted", fault=stop, latency_s=latency_s, events=attempt.story.all_events())
        if kind not in POLICIES:
            return Outcome("success", events=attempt.story.all_events())
        outcome = await self._perform_step(attempt)
        if outcome is None or around is None:
            return outcome
        journal, whole = attempt.run.used_journal, outcome
        if journal is not None:  # hooks see the whole cost; its units have recorded their share
            whole = replace(outcome, usage=outcome.usage + journal.payments.spent)
        after = await self._effects.call(attempt.inside, around.after, whole)
        return replace(after, usage=outcome.usage, events=attempt.story.all_events())

    async def _perform_step(self, attempt: StagedAttempt) -> Outcome | None:
        """Run a step's code and return its outcome; None if it was cancelled, or another worker begins it again."""
        active, run = attempt.active, attempt.run
        # Reading and packing large values, and queries, take too long for the engine's loop.
        context = (attempt.inlined or attempt.envelope).context
        is_long = attempt.envelope.references or (context is not None and self._is_other(attempt, context))
        is_final = False
        try:
            if is_long:
                work = await self._effects.call(attempt.inside, self._work, attempt, may_be_other=True)
            else:
                work = attempt.inside(self._work, attempt)
            done = await self._run(work, attempt)
            pack = partial(attempt.inside, self._pack, attempt, done)
            output, context = await self._effects.call(pack) if is_long else pack()
        except CancelledError:
            if active.cancelled or self._lease.is_stopping:
                return None
            active.interrupted |= self._loop.is_given_up
            fault, usage = fault_of(AgentError("the agent cancelled its own task"), "agent"), run.spent
        except StageError as failure:
            is_final = run.has_blocked  # even if interrupted: it would block another worker's loop as well
            await self._leave_to_others(attempt, failure.error, failure.usage)
            fault, usage = attempt.inside(_stage_fault, failure, run, attempt.envelope.tries), failure.usage
            if (left := getattr(failure.error, "flujo_left_behind", None)) is not None:
                attempt.emit("step.left_behind", "warning", **_place_data(left, _LET_GO))
            failure.__traceback__ = None  # breaks a reference cycle: a burst of failures would fill the memory
        except Exception as error:  # noqa: BLE001 - any error becomes the outcome's fault
            await self._leave_to_others(attempt, error, run.spent)
            fault, usage = fault_of(error, "system"), run.spent
        else:
            return self._succeeded(attempt, output, context)
        if run.over is not None:
            return self._limited(attempt, run.over, usage)
        if (active.interrupted and not is_final) or await self._return_starved(attempt):
            await self._record_interrupted(attempt, usage)
            return None
        return self._failed(attempt, fault, usage)

    def _succeeded(self, attempt: StagedAttempt, output: Packed, context: Packed | None) -> Outcome:
        run, story, latency_s = attempt.run, attempt.story, time.monotonic() - attempt.started
        if run.used_journal is not None:
            attempt.inside(run.used_journal.emit_unasked)
        return Outcome(
            "success",
            output,
            context,
            usage=run.of_its_model(run.spent) if run.calls else run.spent,
            latency_s=latency_s,
            metadata=tally(story) | run.notes if story else run.notes,
            events=story.all_events(),
            corrections=tuple(run.corrections),
            code=attempt.code and attempt.code.mark,
        )

    def _failed(self, attempt: StagedAttempt, fault: Fault, usage: Usage) -> Outcome:
        run, story = attempt.run, attempt.story
        if run.asks and fault.code == PausedException.code:
            fault = replace(fault, message=message_of(run.asks), question=question_of(run.asks))
        if run.guidance:
            said = redact(run.guidance)
            guidance = said if fault.guidance is None else f"{fault.guidance}\n{said}"
            fault = replace(fault, feedback=f"{fault.feedback}\n{said}", guidance=guidance)
        outcome, answer = failed(fault, run.of_its_model(usage), attempt.started), self._refused_answer(fault, run)
        metadata, events, corrections = tally(story) | run.notes, story.all_events(), tuple(run.corrections)
        return replace(outcome, answer=answer, metadata=metadata, events=events, corrections=corrections)

    def _limited(self, attempt: StagedAttempt, over: Fault, usage: Usage) -> Outcome:
        """Return the outcome of an attempt whose next request exceeds a budget. Its units have recorded what it paid before."""
        journal = attempt.run.used_journal
        spent = usage if journal is None else usage + journal.payments.take_spent()
        return replace(self._failed(attempt, over, spent), kind="limit")

    def _refused_answer(self, fault: Fault, run: AttemptRun) -> str | None:
        """Return the answer that was rejected for its shape, if the settings store answers."""
        if run.raw is None or fault.code != AgentIOValidationError.code or not self._settings.log.answers:
            return None
        return storable_text(clean(run.raw, MAX_REFUSED_ANSWER_BYTES))

    async def _return_starved(self, attempt: StagedAttempt) -> bool:
        """Release a starved attempt, to begin again under its number. Return False if that happened too often, or another worker has it."""
        starvation, active = attempt.run.starved, attempt.active
        if starvation is None:
            return False
        wait = AGAIN_S * (0.5 + draw(f"{active.key} {active.fence}"))
        figures = {**starvation._asdict(), "delay_seconds": wait}
        data = {"step": attempt.message.step, **{name: round(each, 3) for name, each in figures.items()}}
        event = Event("attempt.starved", data, "warning")
        give_back, most = self._stores.attempts.return_starved, self._settings.worker.max_starved
        return await self._effects.call(give_back, active.claim, wait, event, most=most)

    async def _record_interrupted(self, attempt: StagedAttempt, usage: Usage) -> None:
        """Record the spend of an attempt that another worker will begin again."""
        if attempt.run.left_in_thread:
            logger.warning("attempt %s: %s", attempt.active.key, _UNTIL_THE_END)
        await self._effects.call(self._spend, attempt, usage)

    def _spend(self, attempt: StagedAttempt, usage: Usage) -> None:
        """Record the spend of an attempt that merges no outcome."""
        active, journal = attempt.active, attempt.run.used_journal
        spent = attempt.run.of_its_model(usage if journal is None else usage + journal.payments.take_spent())
        self._stores.attempts.spend(attempt.message.ticket.run, active.claim, spent, active.reserved)

    async def _leave_to_others(self, attempt: StagedAttempt, error: BaseException, usage: Usage) -> None:
        """Raise what this process lacks if that is why the attempt failed; another worker will begin it again."""
        lack = lack_in(error)
        if lack is not None:
            await self._record_interrupted(attempt, usage)
            raise lack

    def _is_other(self, attempt: StagedAttempt, context: Packed) -> bool:
        """Open the attempt's context; return whether a worker with other fields of its model may have written it."""
        run = attempt.run
        run.stored = run.stored or StoredContext(context, self._resolve)
        model = attempt.entry.pipeline.context_model
        return model is not None and may_be_other(model, run.stored.outline)

    def _fit(self, attempt: StagedAttempt, envelope: Envelope) -> None:
        """Migrate an opened context if it does not fit its model; raises ContextMisfit."""
        migrated = self._migrations.look_again(attempt.entry, envelope)
        if migrated is not None:
            migrated.emit()
            attempt.run.stored = StoredContext(migrated.context, self._resolve)

    def _work(self, attempt: StagedAttempt, *, may_be_other: bool = False) -> Work:
        """Decode an attempt's input, with the values that are stored apart."""
        run, envelope = attempt.run, attempt.inlined or attempt.envelope
        if envelope.references:
            attempt.inlined = envelope = envelope.inline(fetched(self._stores.blobs, envelope.references))
        if may_be_other and envelope.context is not None and self._is_other(attempt, envelope.context):
            self._fit(attempt, envelope)
        needs, reply = attempt.needs or self._needs.find(attempt.entry, envelope), attempt.reply
        run.work = needs.make_work(
            data=with_turns(decode(envelope.input.tree(), resolve=self._resolve), run.stored),
            guidance=envelope.guidance,
            timeout_s=needs.timeout_s or run.settings.agent_timeout_s,
            reply=reply,
            replies=partial(self._stores.records.replies, envelope.ticket.run, envelope.address, envelope.step),
        )
        if needs.reads_context or reply is not None:
            _ = run.context  # now, in a thread if it is large
        return run.work

    async def _run(self, work: Work, attempt: StagedAttempt) -> Done:
        """Run a step's code on its loop, and wait for its end."""
        active, loop = attempt.active, self._loop
        code = _run_policy(POLICIES[attempt.envelope.kind], work, attempt.run)
        future = attempt.inside(loop.submit, code, active.key, partial(self._spend_late, attempt))
        active.on_cancel, active.on_interrupt = future.cancel, partial(loop.interrupt, future)
        if active.cancelled:
            future.cancel()
        if active.interrupted:
            loop.interrupt(future)
        try:
            return await self._effects.result(future)
        finally:
            active.on_cancel = active.on_interrupt = None
            self._check()
            if (progress := attempt.run.progress) is not None:
                attempt.emit("step.progress", **progress)
            if (blocked := future.blocked_at) is not None:
                attempt.run.has_blocked = True
                attempt.emit("step.blocked_loop", "warning", **_place_data(blocked, _UNBLOCK))

    def _spend_late(self, attempt: StagedAttempt, _: asyncio.Task[Done]) -> None:
        """Record the spend of abandoned code that has now ended. The rest of its outcome is dropped."""
        self._threads.submit(self._spend, attempt, attempt.run.spent)

    def _pack(self, attempt: StagedAttempt, done: Done) -> tuple[Packed, Packed | None]:
        """Pack an output and the context that it changed. Raises SnapshotTooLarge: trying again would not help."""
        envelope, work, live = attempt.inlined or attempt.envelope, attempt.run.work, done.context
        assert work is not None, "it was performed"
        stored, context = live if isinstance(live, StoredContext) else None, None
        depth, path = 0 if stored is None else DEPTH_OF_OUTPUTS, f"output of step '{envelope.step}'"
        made = encode(done.output, path=path, depth=depth)
        output = Packed.of(made, like=(envelope.input,))
        if stored is not None and _extend_stored(stored, work.step, made, done):
            context = stored.packed()
        elif live is not None:
            if stored is not None:
                live = written(work.step, done.output, stored.live(), done.field, done.item)
            context = Packed.of(encode(live, path="context"), like=(envelope.context,))
        most = self._settings.limits.snapshot_max_bytes
        for packed, what in ((output, path), (context, "context")):
            if packed is not None and packed.length > most:
                raise SnapshotTooLarge(f"{packed.length:,} bytes of JSON; at most {most:,} can be sent", path=what)
        if context is None or context == envelope.context:
            return output, None
        if context.parts:
            _ = context.digest  # while this is in a thread
        return output, context


def _extend_stored(context: StoredContext, step: Step, output: Tree, done: Done) -> bool:
    """Add the step's output to a context that was never decoded; return False if only the live one can take it."""
    if done.field is not None and not context.add_item(done.field, encode(done.item, path="context"), type(done.item)):
        return False
    return context.add_output(step.name, output)


def failed(fault: Fault, usage: Usage, started: float) -> Outcome:
    """Return the outcome of a fault; `started` is the attempt's start by the monotonic clock."""
    kind: Literal["aborted", "failure"] = "aborted" if fault.category == ErrorCategory.CONTROL_FLOW else "failure"
    return Outcome(kind, fault=fault, usage=usage, latency_s=time.monotonic() - started)


def _stage_fault(failure: StageError, run: AttemptRun, tries: int) -> Fault:
    has_asked = run.has_called_agent or failure.usage.requests > 0
    retry_bugs = None if run.work is None else run.work.step.config.retry_bugs
    fault = fault_of(failure.error, failure.during, has_asked=has_asked, retry_bugs=retry_bugs)
    if fault.details.keys() & {"status", "rule"} and (model := run.model_of(failure.error)) is not None:
        fault = replace(fault, details={**fault.details, "model": model})
    if failure.error is run.of_tool:
        fault = replace(fault, guidance=None)
    elif failure.error is run.verdict:
        fault = replace(fault, guidance=guidance_of(failure.error, judges=True))
    if _is_last_by_agent(run, tries):
        fault = replace(fault, retryable=fault.is_requested)
    if fault.guidance is None and (journal := run.used_journal) is not None:
        keeps_units = not run.has_called_agent or journal.has_failed_with(failure.error) or is_timeout(failure.error)
        fault = replace(fault, keeps_units=keeps_units)
    run.starved = run.starvation(failure.error)
    if run.starved is not None:
        return replace(fault, suggestion=_STARVED.format(*run.starved))
    is_left = run.left_in_thread and isinstance(failure.error, TimeoutError)
    return replace(fault, suggestion=_IN_A_THREAD) if is_left else fault


def _is_last_by_agent(run: AttemptRun, tries: int) -> bool:
    """Return whether an agent that its step names by a reference allows no further attempt, and the step does not say otherwise."""
    work = run.work
    if work is None or "max_retries" in work.step.config.model_fields_set:
        return False
    most = defaults_of(work.callee.agent).get("max_retries")
    return most is not None and tries > most


def _place_data(place: Place, advice: str) -> dict[str, str]:
    return {"function": place.function, "place": place.at, "advice": advice}


async def _run_policy(policy: Policy, work: Work, run: AttemptRun) -> Done:
    """Run a policy. Raises StageError: the stage that failed, with the usage so far, and its exception.

    That includes all exceptions: a `sys.exit()` of user code would end the event loop, its own cancellation the attempt. Only a cancellation of the
    attempt itself passes through.
    """
    try:
        return await (policy(work, run) if work.resources is None else holding(work, run, policy))
    except BaseException as error:
        run.spent += run.take_charge(error)
        if is_cancelled():
            raise
        raise run.failed(error) from error
