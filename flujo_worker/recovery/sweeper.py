"""The sweeper: finds what was dropped and signals again. Every worker process runs one; about one sweep a second is done in all.

It recovers messages that were never published or were lost, workers that died, timers that are due, runs that were cancelled or
are past their deadline, questions whose time is over, child runs without their parent, joins whose signal was lost, and parked runs whose code is here. Now and
then it makes place for the events of the days to come, and drops those that have passed their retention; ended runs go a few at a time.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from flujo_client.contract.code import AwaitedCode
from flujo_client.contract.envelope import CONTROL_QUEUE, Envelope
from flujo_client.plan.plan import Plan
from flujo_worker import failpoints
from flujo_worker.changed_code.code_changes import CodeChanges
from flujo_worker.changed_code.code_registry import CodeMismatch, CodeRegistry, LoadedPipeline, put_bounded
from flujo_worker.errors import DispatchError, RowLocked, StoreError, Unreadable
from flujo_worker.ports import BrokerSnapshot, Due, Publisher, Store

if TYPE_CHECKING:
    from flujo_worker.coordinator.coordinator import Coordinator

logger = logging.getLogger(__name__)

T = TypeVar("T")

BATCH = 200
STOPPED_FOR = {"cancelled": "cancel requested", "expired": "deadline passed", "failed": "usage limit exceeded"}
UNPARK_EVERY_S = STRAND_EVERY_S = 5.0
ADMISSIONS = 20
"""The maximum of admissions in one sweep, while another may let further runs begin."""
MOST_UNFIT = 100_000
"""Runs that wait for other bodies, or for other models, which a process remembers."""
MOST_KEPT = 100_000
"""Parked runs that a process remembers it cannot move."""
HOUSEKEEPING_EVERY_S = 3600.0
BOOKKEEPING_S = 30 * 86_400.0
"""Seconds that ended workers, earlier broker epochs and tenants' daily budgets are retained."""
TURN, NO_JUDGES_TURN = 0.8, 2.5
"""The maximum of sweep intervals since the fleet's last sweep, for a process that may declare others dead and for one that may not yet."""
LEAVE_LOCKED_S = 10.0
"""Seconds that a sweep leaves alone what it found locked."""
JOIN_OVERDUE_S = 2.0
"""Seconds after the end of its last branch that a fan-out's chord has to signal the join."""
JOIN_OVERDUE_BEHIND_S = 10.0
"""The same while the control queue is not empty: join signals that were sent wait in it, and another one would only make it longer."""


class Sweeper:
    """Sweeps.

    Args:
        store: the rows.
        post: publishes to the broker.
        coordinator: receives the attempts that are permanently lost.
        catalog: the code of this worker, for parked runs.
        changes: moves parked runs to that code if it has changed; None: they wait for the code of their plan.
        worker: returns this process's present incarnation.
        judge: returns this process's present incarnation if it may declare others dead, else None.
        every_s: seconds between two sweeps of the whole fleet.
        max_lost: the maximum of an attempt's losses.
        control_queue: the queue of join signals.
        keep_events_days: days that events are retained; None: forever.
        may_load: returns whether code can be loaded without harm to this process.
        fits: returns whether a pipeline here has the bodies or models that a run waits for, by the waiting attempt.
        look_around: finds what is wrong on this machine, before each turn to sweep.
        prune: deletes a few runs that have passed their retention, after each sweep.
    """

    def __init__(  # noqa: PLR0913 - the composition root gives it all it needs, once
        self,
        store: Store,
        post: Publisher,
        coordinator: Coordinator,
        catalog: CodeRegistry,
        *,
        changes: CodeChanges | None = None,
        worker: Callable[[], str],
        judge: Callable[[], str | None],
        every_s: float = 1.0,
        max_lost: int = 3,
        control_queue: str = CONTROL_QUEUE,
        keep_events_days: int | None = None,
        may_load: Callable[[str, str], bool] = lambda *_: True,
        fits: Callable[[LoadedPipeline, AwaitedCode, Envelope | None], bool] = lambda *_: True,
        look_around: Callable[[], object] = lambda: None,
        prune: Callable[[], object] = lambda: None,
    ) -> None:
        self._store, self._post, self._coordinator, self._catalog = store, post, coordinator, catalog
        self._changes, self._kept_parked = changes, dict[str, None]()
        self._control_queue = control_queue
        self._worker, self._judge = worker, judge
        self._every_s, self._max_lost = every_s, max_lost
        self._unparked_at = self._stranded_at = self._housekept_at = float("-inf")
        self._keep_events_days, self._look_around, self._may_load = keep_events_days, look_around, may_load
        self._fits, self._prune, self._unfit = fits, prune, dict[object, None]()
        self._locked_until = dict[str, float]()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._sweep_forever, name="flujo-sweeper", daemon=True)

    def start(self) -> Sweeper:
        """Sweep from now on."""
        self._thread.start()
        return self

    def retire(self) -> None:
        """Begin no more sweeps."""
        self._stopping.set()

    def stop(self) -> None:
        """Stop after the sweep under way."""
        self.retire()
        self._thread.join(timeout=5)

    def sweep(self) -> int:
        """Sweep once, whichever worker's turn it is; return how many messages went out.

        What somebody else's transaction has locked is left to a later sweep, and delays no other part.
        """
        for part in (
            self._stop_runs,
            self._poisoned,
            self._admit,
            self._wind_down,
            self._strand,
            self._unpark,
            self._join,
            partial(self._store.expire_questions, BATCH),
            self._offer_permits,
            self._housekeep,
        ):
            _unless_locked(part)
        return _unless_locked(self._send_due) or 0

    def _stop_runs(self) -> None:
        for run, status in self._store.runs_to_stop(BATCH):
            self._safely(f"winding down {run}", partial(self._coordinator.stop, run, status, STOPPED_FOR[status]))
        for run in self._store.orphaned_children(BATCH):
            self._safely(f"winding down {run}", partial(self._coordinator.stop, run, "cancelled", "parent ended"))

    def _poisoned(self) -> None:
        if (judge := self._judge()) is not None:
            poisoned = self._store.poisoned(judge=judge, max_lost=self._max_lost, limit=BATCH, damaged=self._break_off)
            for envelope, fence in poisoned:
                self._safely(f"failing {envelope.key}", partial(self._fail, envelope, fence))

    def _send_due(self) -> int:
        broker = BrokerSnapshot(self._store.epoch_start(self._post.epoch()), self._post.heads(self._store.queues()))
        due = self._store.due(
            broker,
            judge=self._judge(),
            max_lost=self._max_lost,
            limit=BATCH,
            publish=self._publish,
            damaged=self._break_off,
        )
        return len(due)

    def _fail(self, envelope: Envelope, fence: int) -> None:
        """Fail a step that was lost too often. If that cannot be merged either, its run fails directly."""
        why = Unreadable(f"attempt {envelope.key} was lost too often, and its failure does not match its rows")
        try:
            self._coordinator.lost(envelope, fence, self._max_lost + 1)
        except (StoreError, DispatchError):
            raise
        except Exception as error:
            logger.exception("failing %s failed", envelope.key)
            why.__cause__ = error
        self._coordinator.break_off(envelope.ticket.run, why, key=envelope.key, fence=fence)

    def _move(self, run: str, what: str, act: Callable[[], object]) -> None:
        """Move a run on; one whose rows do not let it be moved is failed."""

        def move() -> None:
            try:
                act()
            except (StoreError, DispatchError):
                raise
            except Exception as error:
                logger.exception("%s of %s failed", what, run)
                self._break_off(run, None, None, Unreadable(f"{what} failed: {error}", cause=error))

        self._safely(f"{what} of {run}", move)

    def _break_off(self, run: str, key: str | None, fence: int | None, error: Unreadable) -> None:
        self._safely(f"failing {run}", partial(self._coordinator.break_off, run, error, key=key, fence=fence))

    def _strand(self) -> None:
        """Fail runs that nothing can move any more: the rows that could are gone."""
        now = time.monotonic()
        if now - self._stranded_at < STRAND_EVERY_S:
            return
        self._stranded_at = now
        for run in self._store.stranded(BATCH):
            error = Unreadable("it cannot continue: no attempt is live, and it waits for nothing")
            self._safely(f"failing {run}", partial(self._coordinator.break_off, run, error))

    def _admit(self) -> None:
        """Let waiting runs begin that no worker has let: it died, or only time had to pass."""
        admitted = self._coordinator.admit()
        for _ in range(ADMISSIONS):
            if not admitted.again:
                return
            admitted = self._coordinator.admit((), admitted.again)

    def _wind_down(self) -> None:
        """Close what a crash left of aborted fan-outs.

        That they are aborted is seen the moment it is committed. The worker that did it is about to wind down and signal too, so the signal is
        left to it, and to `_join` when it is gone: a signal from here would win that race now and then, without anything being wrong.
        """
        for run, fan_out in self._store.aborted(BATCH):
            self._move(run, f"winding down {fan_out}", partial(self._store.wind_down_branches, run, fan_out))

    def _join(self) -> None:
        """Signal joins whose signal was lost."""
        is_behind = self._post.heads([self._control_queue])[self._control_queue] is not None
        for run, fan_out in self._store.missed_joins(BATCH, JOIN_OVERDUE_BEHIND_S if is_behind else JOIN_OVERDUE_S):
            self._move(run, f"joining {fan_out}", partial(self._coordinator.signal_join, run, fan_out, by="sweeper"))

    def _offer_permits(self) -> None:
        """Publish attempts that wait at a concurrency limit where places are free."""
        if offered := self._store.offer_permits():
            self._post.send(self._store.envelopes(offered))

    def _publish(self, due: Sequence[Due]) -> None:
        if not due:
            return
        self._post.send([each.envelope for each in due])
        failpoints.hit("sweep_published")
        for each in due:
            logger.debug("attempt %s published again: %s", each.envelope.key, each.why)

    def _unpark(self) -> None:
        """Let parked runs continue whose code is here. Each process looks for itself, for no other one knows its code."""
        now = time.monotonic()
        if now - self._unparked_at < UNPARK_EVERY_S:
            return
        self._unparked_at = now
        unfit = set()  # what does not load is tried once, however many runs wait for it
        for run, *code in self._store.parked(BATCH, set(self._kept_parked)):
            if tuple(code) in unfit or not self._may_load(*code):
                continue
            try:
                self._catalog.entry(*code)
            except CodeMismatch as finding:
                if finding.loaded is None or self._changes is None:
                    unfit.add(tuple(code))
                else:
                    self._safely(f"moving {run}", partial(self._change_code, self._changes, run, finding.loaded.plan))
                continue
            except Unreadable as error:
                self._break_off(run, None, None, error)
                continue
            self._safely(f"unparking {run}", partial(self._store.unpark, run, self._worker()))
        for run, *code, awaited in self._store.parked_for_code(BATCH):
            if tuple(code) not in unfit and self._may_load(*code):
                self._safely(f"unparking {run}", partial(self._unpark_if_fit, run, code, awaited))

    def _unpark_if_fit(self, run: str, code: Sequence[str], awaited: AwaitedCode) -> None:
        """Let a run continue that waits for bodies of functions or for models, if this worker has them.

        Each worker is asked once: its code does not change.
        """
        if (run, awaited) in self._unfit:
            return
        try:
            entry = self._catalog.entry(*code)
        except CodeMismatch as finding:
            if finding.loaded is not None and self._changes is not None:
                self._change_code(self._changes, run, finding.loaded.plan)
        else:
            waiting = self._store.envelopes([awaited.attempt]) if awaited.attempt else []
            if self._fits(entry, awaited, next(iter(waiting), None)):
                self._store.unpark(run, self._worker())
                return
        put_bounded(self._unfit, (run, awaited), None, most=MOST_UNFIT)

    def _change_code(self, changes: CodeChanges, run: str, plan: Plan) -> None:
        """Move a parked run to the present code. A run that may not continue under it is not tried again: neither changes."""
        try:
            carried = changes.carry_on(run, plan)
        except Unreadable as error:
            self._break_off(run, None, None, error)
            return
        if carried.verdict == "refused":
            put_bounded(self._kept_parked, run, None, most=MOST_KEPT)

    def _housekeep(self) -> None:
        now = time.monotonic()
        if now - self._housekept_at >= HOUSEKEEPING_EVERY_S:
            if not self._safely(
                "creating partitions for events", partial(self._store.rotate_event_partitions, self._keep_events_days)
            ):
                return
            self._housekept_at = now
            self._safely("deleting old workers", partial(self._store.prune_bookkeeping, BOOKKEEPING_S))
            self._safely("deleting unused gates", self._store.prune_gates)

    def _safely(self, what: str, act: Callable[[], object]) -> bool:
        """Do one thing of a sweep, and return whether it was done; an error with one row must not delay the others.

        What was found locked is left alone for a while: each try takes as long as a statement waits for a lock.
        """
        now = time.monotonic()
        if self._locked_until.get(what, now) > now:
            return False
        try:
            act()
        except RowLocked as error:
            logger.warning("%s is left to a later sweep: %s", what, error)
            put_bounded(self._locked_until, what, now + LEAVE_LOCKED_S)
        except StoreError:
            raise
        except Exception:
            logger.exception("%s failed; the next sweep tries again", what)
        else:
            return True
        return False

    def _begins(self) -> bool:
        """Return whether it is this process's turn to sweep; while somebody else has locked the row of turns, each process sweeps."""
        try:
            return self._store.begin_sweep(self._worker(), self._every_s * self._patience())
        except RowLocked as error:
            logger.warning("sweeping without a turn: %s", error)
            return True

    def _patience(self) -> float:
        """Leave the turn to those who may judge: a sweep by one who may not would find no worker lost."""
        return TURN if self._judge() is not None else NO_JUDGES_TURN

    def _sweep_forever(self) -> None:
        while not self._stopping.wait(self._every_s * random.uniform(0.8, 1.2)):  # noqa: S311 - jitter
            try:
                _unless_locked(self._look_around)
                _unless_locked(self._unpark)
                if self._begins():
                    while self.sweep() == BATCH and not self._stopping.is_set():
                        pass
                    _unless_locked(self._prune)
            except (StoreError, DispatchError) as error:
                logger.warning("sweep postponed: %s", error)
            except Exception:
                logger.exception("a sweep failed; the next one tries again")


def _unless_locked(part: Callable[[], T]) -> T | None:
    """Do a part of a sweep; one that finds a row locked is left to the next sweep."""
    try:
        return part()
    except RowLocked as error:
        logger.warning("a part of a sweep is left to the next one: %s", error)
        return None
