"""What comes of a claimed attempt: its pipeline's hooks, its policy, what it gives packed. Whatever happens is an outcome.

It must not claim or conclude: that is `perform.py`'s part, before and after. In: a claimed attempt and its live pipeline.
Out: its outcome, or None where it was cancelled.
"""

from __future__ import annotations

import time
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from flujo_client.contract.outcome import NO_USAGE, Event, Fault, Outcome
from flujo_client.contract.processing import resolve
from flujo_client.errors import AgentError, FlujoError, PausedException, SnapshotTooLarge
from flujo_client.pipeline.compiled_text import filling_by
from flujo_client.pipeline.identity import defaults_of
from flujo_client.redact import redact
from flujo_client.serial import Packed, Resolver, decode, encode
from flujo_worker.agents.call_stats import collecting_calls
from flujo_worker.agents.pricing import priced_by
from flujo_worker.agents.prompts.render import rendering_by
from flujo_worker.agents.telling import telling_prompts
from flujo_worker.aros.metrics import tally
from flujo_worker.attempts.around import StepHooks
from flujo_worker.attempts.policies import POLICIES
from flujo_worker.attempts.resources import holding
from flujo_worker.domain.conversation import conversation_at
from flujo_worker.observe.log import emit, filling_of
from flujo_worker.runtime.faults import ErrorCategory, fault_of
from flujo_worker.runtime.work import Done, Notes, StageError, Work
from flujo_worker.user_code.question import fetched

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence
    from concurrent.futures import Executor

    from flujo_client.config.manager import Settings
    from flujo_client.contract.envelope import Envelope
    from flujo_client.contract.outcome import Usage
    from flujo_worker.attempts.lease import ActiveAttempt, Lease
    from flujo_worker.event_loop import Loop
    from flujo_worker.frames import Place
    from flujo_worker.ports import Ledger, Reply
    from flujo_worker.user_code.code_registry import LoadedPipeline
    from flujo_worker.user_code.hooks import HookCaller


@dataclass(frozen=True, slots=True)
class Claimed:
    """An attempt that is this process's to perform: `reply` is what became of the question it waited with, `started` since when."""

    envelope: Envelope
    held: ActiveAttempt
    reply: Reply | None
    started: float


class Outcomes:
    """What comes of the attempts that this process performs.

    Args:
        ledger: where answers and stored values are read.
        lease: this process's right to work: an attempt that is cancelled while it is given up has no outcome.
        loop: the process's event loop.
        threads: where sync agents run.
        hooks: calls the pipelines' hooks, and has the live pipelines of this process.
        settings: limits, timeouts and allowed imports.
    """

    def __init__(
        self, ledger: Ledger, lease: Lease, loop: Loop, threads: Executor, hooks: HookCaller, settings: Settings
    ) -> None:
        self._ledger, self._lease, self._loop, self._threads = ledger, lease, loop, threads
        self._hooks, self._catalog, self._settings = hooks, hooks.catalog, settings
        self._resolve = Resolver(settings.allowed_imports)

    def of(self, claimed: Claimed, entry: LoadedPipeline, story: Sequence[Event], notes: Notes) -> Outcome | None:
        """Perform an attempt, between what its pipeline's hooks are told; work with nothing to perform is a success."""
        envelope = claimed.envelope
        around = self._around(envelope, entry) if entry.plan.hooks and envelope.kind != "join" else None
        stop = None if around is None else around.before()
        if stop is not None:
            return Outcome("aborted", fault=stop, latency_s=time.monotonic() - claimed.started, events=tuple(story))
        if envelope.kind not in POLICIES:
            return Outcome("success", events=tuple(story))
        outcome = self._performed(claimed, entry, story, notes)
        if outcome is None or around is None:
            return outcome
        return replace(around.after(outcome), events=tuple(story))

    def _around(self, envelope: Envelope, entry: LoadedPipeline) -> StepHooks:
        return StepHooks(self._hooks, self._ledger, self._resolve, envelope, entry, entry.node_of(envelope))

    def _performed(
        self, claimed: Claimed, entry: LoadedPipeline, story: Sequence[Event], notes: Notes
    ) -> Outcome | None:
        envelope, held, started = claimed.envelope, claimed.held, claimed.started
        try:
            done = self._run(self._work(claimed, entry, notes), envelope, held)
            output, context = self._packed(envelope, done)
        except CancelledError:
            if held.cancelled or self._lease.is_stopping or self._loop.is_given_up:
                return None
            fault, usage = fault_of(AgentError("the agent cancelled its own task"), "agent", None), NO_USAGE
        except StageError as stumble:
            fault, usage = fault_of(stumble.error, stumble.during, stumble.timeout_s), stumble.usage
            _tell_left(stumble.error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it becomes the outcome's fault
            fault, usage = fault_of(error, "system", None), NO_USAGE
        else:
            latency = time.monotonic() - started
            return _told(Outcome("success", output, context, usage=done.usage, latency_s=latency), story, notes)
        if notes.paused_in and fault.code == PausedException.code:
            fault = replace(fault, tool=notes.paused_in)
        if notes.guidance:
            fault = replace(fault, feedback=f"{fault.feedback}\n{redact(notes.guidance)}")
        return _told(failed(fault, usage, started), story, notes)

    def _work(self, claimed: Claimed, entry: LoadedPipeline, notes: Notes) -> Work:
        envelope = claimed.envelope
        if envelope.references:
            envelope = envelope.inline(fetched(self._ledger, envelope.references))
        path = entry.node_of(envelope).path
        step = entry.steps[path]
        context = None if envelope.context is None else decode(envelope.context.tree(), resolve=self._resolve)
        agent = self._catalog.agent(step.agent)
        own_timeout = step.config.timeout_s or defaults_of(agent).get("timeout_s")
        return Work(
            step=step,
            agent=agent,
            data=decode(envelope.input.tree(), resolve=self._resolve),
            context=context,
            guidance=envelope.guidance,
            timeout_s=own_timeout or self._settings.agents.agent_timeout_s,
            threads=self._threads,
            processing=resolve(step.processing, envelope.ticket.aros),
            agent_of=self._catalog.agent,
            notes=notes,
            resources=self._catalog.resources(entry.resources_at(path)),
            prompts=self._settings.log.prompts,
            reply=claimed.reply,
            replies=partial(self._ledger.replies, envelope.ticket.run, envelope.address, envelope.step),
            resolve=self._resolve,
            conversation=conversation_at(entry.plan, envelope.address),
        )

    def _run(self, work: Work, envelope: Envelope, held: ActiveAttempt) -> Done:
        late = partial(self._spend_late, envelope, held, work.notes)
        future = self._loop.submit(_perform(envelope.kind, work, self._settings), envelope.key, late)
        held.on_cancel.append(future.cancel)
        if held.cancelled:
            future.cancel()
        return future.result()

    def _spend_late(self, envelope: Envelope, held: ActiveAttempt, notes: Notes, ended: asyncio.Task[Done]) -> None:
        """Record what an attempt has spent that was left behind and has ended at last. All else that came of it goes nowhere."""
        error = None if ended.cancelled() else ended.exception()
        own = getattr(error, "usage", NO_USAGE) if ended.cancelled() or error is not None else ended.result().usage
        self._threads.submit(self._ledger.spend, envelope.ticket.run, envelope.key, held.fence or 0, own + notes.spent)

    def _packed(self, envelope: Envelope, done: Done) -> tuple[Packed, Packed | None]:
        output = self._pack(done.output, f"output of step '{envelope.step}'", done.usage)
        if done.context is None:
            return output, None
        context = self._pack(done.context, "context", done.usage)
        before = envelope.context
        return output, None if before is not None and before.digest == context.digest else context

    def _pack(self, value: object, what: str, usage: Usage) -> Packed:
        """Pack a value strictly; a value that cannot travel fails the step, and trying again would not help."""
        most = self._settings.limits.snapshot_max_bytes
        try:
            packed = Packed.of(encode(value, path=what))
            length = len(packed.json())
            if length > most:
                raise SnapshotTooLarge(f"{length:,} bytes of JSON; at most {most:,} may travel", path=what)
        except FlujoError as error:
            raise StageError(error, "system", usage) from error
        return packed


def failed(fault: Fault, usage: Usage, started: float) -> Outcome:
    """Make the outcome of a fault; `started` is when the attempt was, by this process's clock."""
    kind: Literal["aborted", "failure"] = "aborted" if fault.category == ErrorCategory.CONTROL_FLOW else "failure"
    return Outcome(kind, fault=fault, usage=usage, latency_s=time.monotonic() - started)


def _tell_left(error: BaseException) -> None:
    place: Place | None = getattr(error, "flujo_left_behind", None)
    if place is not None:
        emit("step.left_behind", "warning", function=place.function, place=place.at)


def _told(outcome: Outcome, story: Sequence[Event], notes: Notes) -> Outcome:
    """Put the attempt's story into its outcome, with what is counted of it."""
    usage, corrections = outcome.usage + notes.spent, tuple(notes.corrections)
    return replace(outcome, usage=usage, metadata=tally(story), events=tuple(story), corrections=corrections)


async def _perform(kind: str, work: Work, settings: Settings) -> Done:
    with (
        priced_by(settings.cost),
        rendering_by(settings.template),
        filling_by(filling_of(settings.template)),
        telling_prompts(settings.log.prompts),
        collecting_calls(work.notes.calls),
    ):
        return await holding(work, POLICIES[kind])
