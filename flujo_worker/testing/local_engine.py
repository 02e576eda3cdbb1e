"""The whole engine in one process, every boundary serialised: for your tests and ours.

    engine = LocalEngine()
    result = engine.run(pipeline, "input", context={"topic": "bees"})

Each attempt is an envelope that is turned into bytes and back before it is performed; the store is in memory and has the same guarantees as
Postgres. Its clock does not run: waits pass at once, in the order in which they end. A step's exception is the `__cause__` of the one that
`raise_for_status` raises.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel

from flujo_client.api.operations import FoundPipeline, new_run_of
from flujo_client.api.options import RunOptions, refuse_unknown
from flujo_client.api.retry import order_of
from flujo_client.config.manager import Settings
from flujo_client.config.model_guards import first_rows
from flujo_client.contract.approval import OPEN, Approval, check_answer, choose, closed
from flujo_client.contract.envelope import CONTROL_QUEUE, TASK_JOIN, Envelope, JoinSignal
from flujo_client.contract.event import check_event, check_words, id_taken
from flujo_client.contract.parameters import ContextT, OutputT
from flujo_client.contract.read import read_result
from flujo_client.contract.records import AttemptRecord, EventRecord, RunRecord
from flujo_client.contract.results import PipelineResult
from flujo_client.errors import ClientError
from flujo_client.pipeline.cache import InMemoryCache
from flujo_client.pipeline.check import check
from flujo_client.pipeline.compile import compile_plan
from flujo_client.pipeline.fork import begun_place, new_fork, place_of, retried_before
from flujo_client.pipeline.pipeline import Pipeline, walk
from flujo_client.pipeline.reference import load_pipeline, reference_to
from flujo_client.pipeline.step import Step
from flujo_client.plan.plan import Backoff
from flujo_client.serial import MAIN, Packed, Resolver, dumps, encode, loads
from flujo_worker.agents.refused_formats import RefusedFormats
from flujo_worker.attempts.lease import Lease
from flujo_worker.attempts.perform import Attempts
from flujo_worker.changed_code.code_changes import CodeChanges
from flujo_worker.changed_code.code_registry import CodeRegistry, LoadedPipeline
from flujo_worker.concurrency.event_loop import Loop
from flujo_worker.concurrency.threads import Threads
from flujo_worker.coordinator.coordinator import Coordinator
from flujo_worker.domain.values import FanOut
from flujo_worker.guards.cells import MODELS, RATES, MemoryCells
from flujo_worker.guards.live import LiveGuards
from flujo_worker.guards.models import CalledModels
from flujo_worker.guards.rates import RateLimiter
from flujo_worker.liveness.watchdog import Steps, Watchdog
from flujo_worker.ports import BrokerSnapshot, Member
from flujo_worker.recovery.hook_delivery import HookDelivery
from flujo_worker.runtime.faults import retaining_errors
from flujo_worker.store.memory.stores import MemoryStores
from flujo_worker.store.memory.tables import Tables
from flujo_worker.testing.faults import Faults, FaultyDelivery
from flujo_worker.user_code.evaluator import Evaluator, user_code_runtime
from flujo_worker.user_code.hooks import HookCaller

if TYPE_CHECKING:
    from flujo_client.api.client import FlujoClient

MEMBER = Member("local", "localhost", 1, "test", 1)
REGISTERED_S = 10 * 365 * 86_400.0
LEASE_S = 3600.0
JOIN_OVERDUE_S = 2.0
_BEYOND_S = 0.001
StandIn = Callable[[Step, Any], Step]


class LocalEngine:
    """Runs pipelines to their end, or to a question to a person, here and now. A context manager; `close` it otherwise.

    Args:
        settings: limits, timeouts and allowed imports; the development defaults when None.
        faults: what goes wrong with messages; nothing when None.
        threads: where user code is called; threads of its own when None.
    """

    def __init__(
        self, settings: Settings | None = None, *, faults: Faults | None = None, threads: Threads | None = None
    ) -> None:
        settings = settings or Settings()
        # What a script or a notebook defines is found in this very process.
        self.settings = settings.model_copy(update={"allowed_imports": (*settings.allowed_imports, MAIN)})
        self.now = 1_700_000_000.0
        self.stores = MemoryStores(Tables(lambda: self.now))
        self.bus: deque[bytes] = deque()
        self._faulty = None if faults is None else FaultyDelivery(faults)
        self.cache = InMemoryCache(clock=lambda: self.now)
        self._loop, self._threads, self._is_closed = Loop(), threads or Threads("flujo-user"), False
        self.watchdog_steps = Steps()
        self._watchdog = Watchdog(self._loop, self._threads, self.settings, self.watchdog_steps)
        self._watchdog.start()
        self._local = _LocalCatalog(self.settings.allowed_imports, self.stores.code.plan)
        self._chords = _Chords()
        bench = user_code_runtime(self.settings, self._loop, self._threads, self.cache)
        hooks = HookCaller(self._local, bench, strict=self.settings.hooks.strict)
        self.coordinator = Coordinator(
            self.stores,
            self._send,
            Evaluator(self.stores, self._local, bench),
            backoff=Backoff(**self.settings.retry.model_dump()),
            inline=self.settings.limits.snapshot_inline_bytes,
            counts_chords=self.settings.counts_chords,
        )
        self.lease = Lease(self.stores.leases, MEMBER, lease_s=LEASE_S, renew_s=LEASE_S / 3)
        self.stores.leases.register_worker(MEMBER, REGISTERED_S)
        on_change = self.settings.runs.on_change
        self.changes = CodeChanges(
            self.stores, self._send, on_change=on_change, control_queue=CONTROL_QUEUE, worker=lambda: self.lease.worker
        )
        self.stores.limits.write_file_settings(first_rows(self.settings))
        guards = LiveGuards(self.stores.limits.guard_rows, self.stores.limits.guard_rows(), every_s=0.0)
        self.attempts = Attempts(
            self.stores,
            self.coordinator,
            self.lease,
            self._loop,
            self._threads,
            hooks,
            self.settings,
            changes=self.changes,
            models=CalledModels(MemoryCells(MODELS, lambda: self.now), guards),
            rates=RateLimiter(MemoryCells(RATES, lambda: self.now), guards),
            refused_formats=RefusedFormats(self.cache),
        )
        self.changes.record = self.attempts.preparation.record
        self.hook_calls = HookDelivery(
            self.stores,
            hooks,
            self.coordinator,
            bench.resolve,
            lease=self.lease,
            isolation=self.attempts.isolation,
            max_lost=self.settings.worker.max_lost,
        )

    def close(self) -> None:
        """Release the event loop and the threads; results can still be read."""
        if self._is_closed:
            return
        self._is_closed = True
        self._watchdog.stop()
        self._loop.close()
        self._threads.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def left_behind(self) -> int:
        """Return how many calls continue though their time and their grace are over."""
        return self._watchdog.left_behind

    def run(
        self, pipeline: str | Pipeline[OutputT, ContextT] | Step[OutputT], value: Any = None, **options: Any
    ) -> PipelineResult[OutputT, ContextT]:
        """Enqueue and run to the end. Takes the options of `enqueue`."""
        run_id = self.enqueue(pipeline, value, **options)
        self.drain()
        return self.result(run_id)

    def from_run(
        self, run_id: str, pipeline: Pipeline | None = None, *, client: FlujoClient | None = None
    ) -> PipelineResult:
        """Run a run of your services again, under the present code, with its recorded answers of models and people.

        `RecordedRun` describes what is recorded, and writes it to a file.

        Args:
            run_id: a run in the client's database, live or ended.
            pipeline: the present code; what the run's reference names when None.
            client: whose services are asked; those of the settings in force when None.

        Raises:
            RunNotFound: there is no such run.
            ReplayError: what it began with, or an output, is no longer stored.
        """
        from flujo_worker.testing.recorded_run import RecordedRun

        return RecordedRun.read(run_id, client=client).rerun(self, pipeline)

    def enqueue(
        self,
        pipeline: str | Pipeline | Step,
        value: Any = None,
        *,
        context: Mapping[str, Any] | BaseModel | None = None,
        **options: Any,
    ) -> str:
        """Check and record a run, and put its first message on the bus; return the run's id."""
        if isinstance(pipeline, str):
            pipeline = load_pipeline(pipeline, allowed=self.settings.allowed_imports)
        elif isinstance(pipeline, Step):
            pipeline = Pipeline.from_step(pipeline)
        arguments = getattr(pipeline, "arguments", None)
        has_context = any(each is not None for each in (context, arguments, pipeline.context_model))
        check(pipeline, allowed=self.settings.allowed_imports, has_context=has_context)
        run_id, deadline = options.pop("run_id", None), options.pop("deadline", None)
        refuse_unknown(options, RunOptions, "enqueue")
        given: Any = options | {"context": context}
        if deadline is not None:
            given["deadline_s"] = deadline - self.now
        found = FoundPipeline(compile_plan(pipeline), self._local.put(pipeline), pipeline.context_model, arguments)
        new = new_run_of(self.settings, found, value, given, run_id=run_id, now=self.now)
        run_id = self.stores.client.record(new)
        if run_id == new.first.ticket.run and not self.stores.reads.is_waiting(run_id):
            self._send([new.first])
        return run_id

    def answer(
        self,
        run_id: str,
        value: Any,
        *,
        step: str | None = None,
        address: str | None = None,
        actor: str | None = None,
        note: str | None = None,
    ) -> PipelineResult:
        """Answer a run's open question as `RunHandle.resume` does, and run on to the end or to the next question."""
        status = self.stores.reads.read_run(run_id).status
        meant = choose(run_id, status, self.stores.reads.read_questions(run_id), step=step, address=address)
        check_answer(meant, value)
        if not self.stores.client.answer(meant.key, Packed.of(encode(value, path="answer")), actor=actor, note=note):
            raise closed(next(each for each in self.stores.reads.read_questions(run_id) if each.key == meant.key))
        self.drain()
        return self.result(run_id)

    def send(self, run_id: str, name: str, value: Any = None, *, id: str | None = None) -> str:  # noqa: A002 - as in `RunHandle.send`
        """Send an event to a run as `RunHandle.send` does, and run on to the end or to what it waits for next; return the event's id."""
        event_id = f"event-{len(self.stores.tables.sent_events) + 1}" if id is None else id
        check_words(name=name, id=event_id)
        packed, state = Packed.of(encode(value, path="event")), self.stores.client.event_state(run_id, name, event_id)
        if state.digest not in (None, packed.digest):
            raise id_taken(run_id, name, event_id)
        if state.digest is None:
            check_event(run_id, name, value, state)
            self.stores.client.send(run_id, name, event_id, packed)
        self.drain()
        return event_id

    def retry(self, run_id: str, from_step: str | None = None, **options: Any) -> PipelineResult:
        """Fork a run from one that has ended, as `RunHandle.retry` does and with its options, and run it to the end."""
        forked = self.fork(run_id, from_step, **options)
        self.drain()
        return self.result(forked)

    def fork(
        self,
        run_id: str,
        from_step: str | None = None,
        *,
        onto: Pipeline | None = None,
        again: bool = False,
        **options: Any,
    ) -> str:
        """Fork a run, and put its first message on the bus; return the new run's id.

        Args:
            run_id: a run that has ended, or with `onto` any.
            from_step: the step to begin at, as for `RunHandle.retry`.
            onto: the present code, as for `RunHandle.fork`; the run's own plan when None.
            again: as for `RunHandle.retry`.
            options: those of `RunHandle.retry`.
        """
        old = self.stores.client.retryable_run(run_id)
        place = place_of(old, from_step) if onto is None else begun_place(old, from_step or "")
        if onto is not None:
            ticket = replace(old.ticket, reference=self._local.put(onto))
            old = replace(old, ticket=ticket)
        plan = None if onto is None else compile_plan(onto)
        found = self.stores.client.beginning(run_id, place, old.names[:place])
        assert found is not None, "every run of this engine stores the starting state of its steps"
        if found.context is not None and found.context.is_reference:
            found = replace(found, context=self.stores.blobs.fetch([found.context.digest])[found.context.digest])
        order = order_of(self.settings, old, now=self.now, **options)
        inline = self.settings.limits.snapshot_inline_bytes
        new = new_fork(old, place, found, order, inline=inline, control_queue=CONTROL_QUEUE, again=again, onto=plan)
        forked = self.stores.client.fork(new)
        if forked is None:
            raise retried_before(run_id, str(old.retried_as))
        if forked == order.run_id and not self.stores.reads.is_waiting(forked):
            self._send([new.first])
        return forked

    def approvals(self, run_id: str) -> list[Approval]:
        """List a run's open questions."""
        return [each for each in self.stores.reads.read_questions(run_id) if each.state == OPEN]

    def deploy(self, old: Pipeline, new: Pipeline) -> None:
        """Deploy other code of a pipeline: from now on the runs of `old` meet `new`, on a worker that was started just now."""
        self._local.put(new, reference=self._local.put(old))
        self.stores.leases.deregister_worker(MEMBER.id)
        self.stores.leases.register_worker(MEMBER, REGISTERED_S)

    @contextmanager
    def standing_in(self, stand_in: StandIn) -> Iterator[None]:
        """Let pipelines that are enqueued inside run `stand_in(step, its live agent)` in place of each step; plans do not change."""
        self._local.stand_in = stand_in
        try:
            yield
        finally:
            self._local.stand_in = None

    def pass_time(self, seconds: float | None = None) -> None:
        """Let time pass, at once: what becomes due meanwhile happens in the order of its time, with the clock at that time.

        Args:
            seconds: how long; then the clock is that much later. None: until nothing waits for a time any more, no question
                that expires and no deadline either.
        """
        until = inf if seconds is None else self.now + seconds
        self._do_what_is_due()
        while inf > (due := self._next([*self._waits(), *self.stores.reads.ends()])) <= until:
            self.now = due
            self._do_what_is_due()
        if seconds is not None:
            self.now = until

    def drain(self) -> None:
        """Deliver every message, and skip the waits, until nothing is left to do.

        Open questions are not waits: they and their runs' deadlines expire only as far as another wait moves the clock.
        """
        self._do_what_is_due()
        while (due := self._next(self._waits())) < inf:
            self.now = min(due, self._next(self.stores.reads.ends()))
            self._do_what_is_due()

    def _next(self, times: Iterable[float]) -> float:
        """Return the first of the times that is still to come; what has passed and did not move will not move by waiting."""
        return min((at for at in times if at > self.now), default=inf)

    def _do_what_is_due(self) -> None:
        if self._is_closed:
            way_out = "run pipelines inside its `with` block, or make another"
            raise ClientError("this LocalEngine is closed", suggestion=way_out)
        while True:
            self._wind_down()
            while self.bus:
                for message in (self.bus.popleft(),) if self._faulty is None else self._faulty.take(self.bus):
                    self.deliver(message)
            self._wind_down()
            self.stores.backlog.hand_over_events(1000)
            self.stores.backlog.expire_questions(1000)
            if self._publish_due():
                continue
            self.coordinator.admit()
            if not self.bus and not self._deliver_hooks():
                return

    def _waits(self) -> list[float]:
        """Return when waits end; with faults also when lost messages are found."""
        if self._faulty is None:
            return self.stores.reads.waiting()
        overdue = [at + _BEYOND_S for at in self.stores.reads.gone_at()]
        missed = [self.now + JOIN_OVERDUE_S + _BEYOND_S] if self.stores.scopes.missed_joins(1, -JOIN_OVERDUE_S) else []
        return [*self.stores.reads.waiting(), *overdue, *missed]

    def _publish_due(self) -> bool:
        """Publish the attempts whose wait is over, and what was lost; return whether there were any."""
        if self._faulty is not None:
            self.recover()
        return bool(self.bus) or (min(self._waits(), default=inf) <= self.now and self.sweep() > 0)

    def _deliver_hooks(self) -> bool:
        """Make the pending hook calls; return whether there were any."""
        return sum(self.hook_calls.carry_out(call) for call in self.hook_calls.due()) > 0

    def _wind_down(self) -> None:
        for run, status in self.stores.backlog.runs_to_stop(1000):
            self.coordinator.stop(run, status, status)
        self._stop_orphans()

    def _stop_orphans(self) -> None:
        while orphans := self.stores.scopes.orphaned_children(1000):
            for run in orphans:
                self.coordinator.stop(run, "cancelled", "parent ended")

    def deliver(self, message: bytes) -> str:
        """Deliver one message, and return the result."""
        wire = loads(message)
        if wire["task"] == TASK_JOIN:
            join_signal = JoinSignal.from_wire(wire)
            envelope = self.coordinator.join_if_due(join_signal.run, join_signal.address)
            if envelope is None:
                return "unknown"
        else:
            envelope = Envelope.from_wire(wire)
        with retaining_errors():
            delivered = self.attempts.perform(envelope)
        if delivered.is_part:
            self._send_join_signal(self._chords.part(envelope))
        return delivered.disposition

    def result(self, run_id: str, *, check: bool = True) -> PipelineResult:
        """Read the result of a run; with `check=False` its `output` is None for a run that did not succeed, instead of raising."""
        resolve = Resolver(self.settings.allowed_imports)
        run, scopes = self.stores.reads.read_run(run_id), self.stores.reads.read_scopes(run_id)
        questions, fetch = self.approvals(run_id), self.stores.blobs.fetch
        result = read_result(run, self.history(run_id), scopes, resolve=resolve, fetch=fetch, questions=questions)
        return result if check else result.unchecked()

    def children(self, run_id: str) -> Sequence[RunRecord]:
        """Read a run's child runs."""
        return self.stores.reads.read_children(run_id)

    def history(self, run_id: str) -> Sequence[AttemptRecord]:
        """Read a run's attempts."""
        return self.stores.reads.read_attempts(run_id)

    def story(self, run_id: str) -> Sequence[EventRecord]:
        """Read a run's events."""
        return self.stores.reads.read_events(run_id)

    def sweep(self, *, may_judge: bool = False) -> int:
        """Publish again what is due; return how many messages that were."""
        broker = BrokerSnapshot(epoch_start=0.0, heads=dict.fromkeys(self.stores.backlog.queues()))
        judge = self.lease.worker if may_judge else None
        due = self.stores.backlog.due(broker, judge=judge, max_lost=self.settings.worker.max_lost, limit=1000)
        self._send([each.envelope for each in due])
        return len(due)

    def recover(self) -> None:
        """Do what a sweep does for waiting runs: wind down runs that must stop, signal joins whose signal was lost."""
        self._stop_orphans()
        for run, fan_out in self.stores.scopes.aborted(1000):
            self.coordinator.wind_down(run, fan_out, by="sweeper")
        for run, fan_out in self.stores.scopes.missed_joins(1000, JOIN_OVERDUE_S):
            self.coordinator.signal_join(run, fan_out, by="sweeper")

    def _send(self, envelopes: Sequence[Envelope], fan_out: FanOut | None = None, *, first: bool = False) -> None:
        if fan_out is not None:
            self._chords.open(envelopes[0].ticket.run, fan_out)
        for envelope in envelopes:
            if envelope.kind == "join":
                self._send_join_signal(JoinSignal(envelope.ticket.run, envelope.address))
            else:
                put = self.bus.appendleft if first else self.bus.append
                put(dumps(envelope.to_wire()))

    def _send_join_signal(self, join_signal: JoinSignal | None) -> None:
        if join_signal is not None:
            self.bus.append(dumps(join_signal.to_wire()))


class _Chords:
    """What Redis counts for Celery: the parts of each chord, each lane's once."""

    def __init__(self) -> None:
        self._sizes: dict[tuple[str, str], int] = {}
        self._parts: dict[tuple[str, str], set[tuple[str, int]]] = {}

    def open(self, run: str, fan_out: FanOut) -> None:
        self._sizes[run, fan_out.address] = fan_out.lanes

    def part(self, envelope: Envelope) -> JoinSignal | None:
        """Count a part; the last one sends the join signal."""
        if not envelope.lanes:
            return None
        place = envelope.ticket.run, max(envelope.lanes, key=len)
        parts = self._parts.setdefault(place, set())
        parts.add((envelope.key, envelope.lanes[place[1]]))
        return JoinSignal(*place) if len(parts) == self._sizes.get(place) else None


class _LocalCatalog(CodeRegistry):
    """Also knows pipelines that no module holds, by a reference that it makes itself."""

    stand_in: StandIn | None = None

    def put(self, pipeline: Pipeline, *, reference: str | None = None) -> str:
        if reference is None and pipeline.blueprint is not None and self.stand_in is None:
            return reference_to(pipeline)
        reference = reference or f"local:{id(pipeline)}"
        steps = dict(walk(pipeline))
        if self.stand_in is not None:
            steps = {path: self.stand_in(step, self.agent(step.agent)) for path, step in steps.items()}
        self._entries[reference] = LoadedPipeline(pipeline, compile_plan(pipeline), steps)
        return reference
