"""An attempt in this process: its stage, and what each stage adds to it.

    taken ────► claimed ────► loaded ────► admitted ────► performed ────► merged
      │                         │             │           ▲
      ├─ refused                ├─ held back  ├─ cancelled, handed back, starved, left to another build
      └─ over before it began ──┴─────────────│───────────┘

Refused: another worker has it, it is over, its run has moved, its rows are locked. Over before it began: its fan-out was aborted, its budget is
used up, its limit drops it. At any stage it may be left to workers that have what is missing here (`elsewhere.py`). `perform.py` has what takes
an attempt from each stage to the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextvars import Context
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Final, Literal, ParamSpec, TypeVar

from flujo_client.attempt_info import running_as
from flujo_client.config.manager import Settings
from flujo_client.contract.envelope import Envelope
from flujo_client.contract.outcome import Outcome
from flujo_client.errors import PausedException
from flujo_client.frozen import frozen
from flujo_client.pipeline.compiled_text import current_filling
from flujo_client.pipeline.step import Step
from flujo_client.plan.plan import Plan
from flujo_client.serial import Resolver
from flujo_worker.attempts.budget import ExpectedCall
from flujo_worker.attempts.isolation import DeliveryResult
from flujo_worker.attempts.lease import Lease
from flujo_worker.changed_code.code_registry import LoadedPipeline
from flujo_worker.changed_code.code_versions import PerformedWith
from flujo_worker.changed_code.context_migrations import MigratedContext
from flujo_worker.concurrency.call_context import context_of_call
from flujo_worker.concurrency.event_loop import Loop
from flujo_worker.coordinator.coordinator import Coordinator
from flujo_worker.domain.called_model import ModelPermit
from flujo_worker.domain.values import AttemptReport
from flujo_worker.guards.rates import Pacing
from flujo_worker.observe.log import collect_events, emit
from flujo_worker.observe.story import Story
from flujo_worker.ports import Reply, Room, Stores
from flujo_worker.runtime.attempt_run import ActiveAttempt, AttemptRun, AttemptStream, Work
from flujo_worker.runtime.effects import Effects
from flujo_worker.traces.live import enter
from flujo_worker.user_code.hooks import HookCaller

P = ParamSpec("P")
T = TypeVar("T")

PERFORMED: Final = ("step", "resume")

Stage = Literal["taken", "claimed", "loaded", "admitted", "performed", "merged", "ended"]
"""taken: its message is here, and no other message of this process is about it. claimed: its row is this process's. loaded: its code is here, its
context fits, its agent is ready. admitted: its limit and its model let it begin. performed: its outcome is known. merged: that and what follows
are committed and published. ended: it has left the path."""

NEXT: Final[Mapping[Stage, frozenset[Stage]]] = {
    "taken": frozenset({"claimed", "performed", "ended"}),
    "claimed": frozenset({"loaded"}),
    "loaded": frozenset({"admitted", "performed", "ended"}),
    "admitted": frozenset({"performed", "ended"}),
    "performed": frozenset({"merged"}),
}
LAST: Final[frozenset[Stage]] = frozenset({"merged", "ended"})


@dataclass(slots=True)
class Admission:
    """An attempt's way through the gates."""

    step: Step
    """What it performs, by `agent`, which calls `model`; None for an agent that is not found, or calls none."""
    agent: Any
    model: str | None
    granted: tuple[int, str] | None = None
    """The fence and the name of the limit that it has a permit for."""
    turn: ModelPermit = field(default_factory=ModelPermit)
    """The answer of its model's breaker and slow-down."""
    pacing: Pacing | None = None
    """Paces its calls of models; None without limits of rates."""


@frozen
class StepNeeds:
    """The needs that all attempts at a step share."""

    entry: LoadedPipeline
    step: Step
    timeout_s: float | None
    """The timeout of the step, or of its agent; None for the project's."""
    make_work: Callable[..., Work]
    """Makes the `Work` of one attempt from its own values."""
    reads_context: bool
    """Whether every attempt reads its context."""
    is_gated: bool
    """Whether an attempt may have to wait for a concurrency limit or a model."""
    code: PerformedWith | None
    """The version of the code, if it is the same for all attempts; None if it depends on their conversation, or is unknown."""


@dataclass(frozen=True)
class AttemptServices:
    """The services that performing an attempt uses."""

    stores: Stores
    coordinator: Coordinator
    lease: Lease
    loop: Loop
    threads: Executor
    hooks: HookCaller
    settings: Settings

    @property
    def effects(self) -> Effects:
        return self.coordinator.effects

    @cached_property
    def resolve(self) -> Resolver:
        return Resolver(self.settings.allowed_imports)


class StagedAttempt:
    """One attempt on its way through the stages.

    Attributes:
        message: the envelope as it was delivered.
        envelope: the message, with its context migrated to the present model.
        inlined: the envelope, with the values that are stored as blobs; None until they are read.
        active: its claim, which the lease renews.
        room: where it runs: with others, in a process of its own, or alone in this one.
        reply: the question it waited with, and its answer.
        calls: the model calls that it has reserved for.
        entry: its pipeline, and `plan` that pipeline's plan.
        needs: what its step needs.
        code: the version of its code.
        migrated: the migration of its context, if that was necessary.
        admission: the gates that it has passed; None if there are none.
        run: the running attempt, as user code finds it, and `story` its events.
        started: when it began, by this process's monotonic clock.
        outcome: the outcome to merge, and `result` the result of the delivery.
        signalled: the state that the signals of a Celery task have reported, if it ran one.
        stream: its stream; None unless its run or its step asks for one.
    """

    entry: LoadedPipeline
    run: AttemptRun
    story: Story
    result: DeliveryResult
    outcome: Outcome
    signalled: str | None = None
    stream: AttemptStream | None = None

    def __init__(self, envelope: Envelope, active: ActiveAttempt, room: Room = "shared") -> None:
        self.message = self.envelope = envelope
        self.active, self.room = active, room
        self.stage: Stage = "taken"
        self.started = 0.0
        self.calls: Sequence[ExpectedCall] = ()
        self.inlined: Envelope | None = None
        self.reply: Reply | None = None
        self.plan: Plan | None = None
        self.needs: StepNeeds | None = None
        self.code: PerformedWith | None = None
        self.migrated: MigratedContext | None = None
        self.admission: Admission | None = None

    @property
    def has_waited(self) -> bool:
        """Return whether it was claimed before."""
        return (self.active.fence or 0) > 1

    def end(self, result: DeliveryResult) -> Stage:
        """End here, with this result of the message."""
        self.result = result
        return "ended"

    def begin(self, run: AttemptRun, *, worker: str) -> None:
        """Create the context that its code runs in, which collects its events and in which `current_run` finds it."""
        self.run, self._context = run, context_of_call()
        inside = self._context.run
        inside(running_as, run)
        inside(current_filling.set, run.settings.filling)
        inside(enter, run.info)
        self.story = inside(collect_events, self.message, worker=worker)
        if self.stream is not None:
            run.stream = self.stream
            self.story.on_output = partial(self.stream.put, "log")
            self.stream.put("step_start", {})

    def inside(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in a copy of the attempt's context, so that its log lines become events of the attempt."""
        context: Context = self._context.copy()
        return context.run(function, *args, **kwargs)

    def emit(self, name: str, /, level: str = "info", **data: Any) -> None:
        """Emit an event of the attempt."""
        self.inside(emit, name, level, **data)

    def end_stream(self, stream: AttemptStream) -> None:
        """Write the last entry of its stream. What was streamed is withdrawn unless the attempt succeeded or waits for an answer."""
        is_merged = self.stage == "merged" and self.result.disposition == "merged"
        if is_merged and self.outcome.kind == "success":
            stream.put("step_end", {})
        elif is_merged and (fault := self.outcome.fault) is not None and fault.code == PausedException.code:
            stream.put("question", {"message": fault.message})
        else:
            stream.put("withdrawn", {})

    def emit_preparation(self) -> None:
        """Emit a migration, and warn that a conversation continues with other code, unless the pipeline ignores that."""
        if self.migrated is not None:
            self.inside(self.migrated.emit)
        if self.code is not None and self.code.changed and self.entry.pipeline.on_body_change != "ignore":
            self.emit("code.changed", "warning", changed=list(self.code.changed))

    def report(self) -> AttemptReport:
        """Return the report to merge. A success writes a migrated context even if the step has not changed it."""
        outcome, migrated = self.outcome, self.migrated
        if self.code is not None and outcome.code is None:
            outcome = replace(outcome, code=self.code.mark)
        if migrated is None or outcome.kind != "success" or self.message.kind not in PERFORMED:
            envelope = self.envelope
        else:
            envelope, outcome = self.message, replace(outcome, context=outcome.context or migrated.context)
        active = self.active
        return AttemptReport(envelope, active.fence or 0, outcome, active.claim_id, tuple(active.reserved))
