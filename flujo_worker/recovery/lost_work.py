"""Find lost work and publish it again.

It recovers messages that were never published or were lost, workers that died, timers that are due, runs that were cancelled or
are past their deadline, events for steps that wait, expired questions, child runs without their parent, and joins whose signal was lost. Now and
then it creates the partitions for the events of the next days, and drops events that have passed their retention. Parked runs whose code is here
continue; each process checks its own code.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from flujo_client.config.manager import Settings
from flujo_client.contract.code import AwaitedCode
from flujo_client.contract.envelope import Envelope
from flujo_client.plan.plan import Plan
from flujo_worker import failpoints
from flujo_worker.attempts.lease import Lease
from flujo_worker.changed_code.code_changes import CodeChanges
from flujo_worker.changed_code.code_registry import CodeMismatch, CodeRegistry, LoadedPipeline, put_bounded
from flujo_worker.coordinator.coordinator import Coordinator
from flujo_worker.errors import DispatchError, StoreError, Unreadable
from flujo_worker.ports import BrokerSnapshot, ClaimId, Due, Publisher, Stores, WorkerStores
from flujo_worker.recovery.sweeper import BATCH, Chore, RowByRow

logger = logging.getLogger(__name__)

STOPPED_FOR = {"cancelled": "cancel requested", "expired": "deadline passed", "failed": "usage limit exceeded"}
STRAND_EVERY_S = 5.0
ADMISSIONS = 20
"""The maximum number of admissions in one sweep, while another may let further runs begin."""
HOUSEKEEPING_EVERY_S = 3600.0
BOOKKEEPING_S = 30 * 86_400.0
"""Seconds that ended workers, earlier broker epochs and tenants' daily budgets are retained."""
JOIN_OVERDUE_S = 2.0
"""Seconds after the end of its last branch that a fan-out's chord has to signal the join."""
JOIN_OVERDUE_BEHIND_S = 10.0
"""The same while the control queue is not empty: earlier join signals may still wait in it."""
UNPARK_EVERY_S = 5.0
MOST_KNOWN = 100_000
"""The maximum number of runs that a process remembers as ones that it cannot continue."""


class LostWork:
    """Recovers lost work. `withdraw` withdraws what an attempt has streamed, by its message and the fence of a later claim."""

    def __init__(
        self,
        stores: WorkerStores,
        post: Publisher,
        coordinator: Coordinator,
        lease: Lease,
        settings: Settings,
        withdraw: Callable[[Envelope, int], object] | None = None,
    ) -> None:
        self._withdraw = withdraw
        self._stores, self._post, self._coordinator, self._lease = stores, post, coordinator, lease
        self._settings, self._max_lost, self._rows = settings, settings.worker.max_lost, RowByRow(coordinator)

    def chores(self) -> list[Chore]:
        """Return the chores of a sweep. The last one sends what is due."""
        return [
            Chore(self._stop_runs),
            Chore(self._fail_poisoned),
            Chore(self._admit),
            Chore(self._wind_down),
            Chore(self._give_lanes, STRAND_EVERY_S),
            Chore(self._strand, STRAND_EVERY_S),
            Chore(self._join),
            Chore(partial(self._stores.backlog.hand_over_events, BATCH)),
            Chore(partial(self._stores.backlog.expire_questions, BATCH)),
            Chore(self._offer_permits),
            Chore(self._housekeep, HOUSEKEEPING_EVERY_S),
            Chore(self._send_due),
        ]

    def _stop_runs(self) -> None:
        for run, status in self._stores.backlog.runs_to_stop(BATCH):
            self._rows.do(f"winding down {run}", self._coordinator.stop, run, status, STOPPED_FOR[status])
        for run in self._stores.scopes.orphaned_children(BATCH):
            self._rows.do(f"winding down {run}", self._coordinator.stop, run, "cancelled", "parent ended")

    def _fail_poisoned(self) -> None:
        if (judge := self._lease.judge()) is not None:
            backlog, most, fail = self._stores.backlog, self._max_lost, self._rows.fail
            for each in backlog.poisoned(judge=judge, max_lost=most, limit=BATCH, damaged=fail):
                self._rows.do(f"failing {each.envelope.key}", self._fail, *each)

    def _fail(self, envelope: Envelope, fence: int, how: str | None) -> None:
        """Fail a step that was lost too often. If that cannot be merged either, its run fails directly."""
        self._withdraw_stream(envelope, fence)
        why = Unreadable(f"attempt {envelope.key} was lost too often, and its failure does not match its rows")
        try:
            self._coordinator.lost(envelope, fence, self._max_lost + 1, how)
        except (StoreError, DispatchError):
            raise
        except Exception as error:
            logger.exception("failing %s failed", envelope.key)
            why.__cause__ = error
        self._coordinator.break_off(envelope.ticket.run, why, ClaimId(envelope.key, fence))

    def _admit(self) -> None:
        """Let waiting runs begin that no worker has admitted: it died, or only time had to pass."""
        admitted = self._coordinator.admit()
        for _ in range(ADMISSIONS):
            if not admitted.again:
                return
            admitted = self._coordinator.admit((), admitted.again)

    def _wind_down(self) -> None:
        """Close the branches that a crash left open in aborted fan-outs.

        An abort is visible as soon as it is committed. The worker that committed it is about to wind down and signal too, so this chore leaves the
        signal to it, or to `_join` if that worker is gone: a signal from here would sometimes win the race although nothing is wrong.
        """
        for run, fan_out in self._stores.scopes.aborted(BATCH):
            self._rows.move(run, f"winding down {fan_out}", self._stores.scopes.wind_down_branches, run, fan_out)

    def _give_lanes(self) -> None:
        for run, fan_out, lane in self._stores.scopes.idle_lanes(BATCH):
            self._rows.move(run, f"giving a lane of {fan_out}", self._stores.scopes.give_lane, run, fan_out, lane)

    def _strand(self) -> None:
        """Fail runs that cannot continue because the rows that would move them are gone."""
        for run in self._stores.scopes.stranded(BATCH):
            why = Unreadable("it cannot continue: no attempt is live, and it waits for nothing")
            self._rows.fail(run, None, None, why)

    def _join(self) -> None:
        """Signal joins whose signal was lost."""
        queue = self._settings.worker.control_queue
        is_behind = self._post.heads([queue])[queue] is not None
        overdue_s = JOIN_OVERDUE_BEHIND_S if is_behind else JOIN_OVERDUE_S
        for run, fan_out in self._stores.scopes.missed_joins(BATCH, overdue_s):
            self._rows.move(run, f"joining {fan_out}", self._coordinator.signal_join, run, fan_out, by="sweeper")

    def _offer_permits(self) -> None:
        """Publish attempts that wait at a concurrency limit where places are free."""
        if offered := self._stores.limits.offer_permits():
            self._post.send(self._stores.backlog.envelopes(offered))

    def _housekeep(self) -> bool:
        days = self._settings.events.keep_days or None
        if not self._rows.do("creating partitions for events", self._stores.retention.rotate_event_partitions, days):
            return False
        self._rows.do("deleting old workers", self._stores.retention.prune_bookkeeping, BOOKKEEPING_S)
        self._rows.do("deleting unused gates", self._stores.retention.prune_gates)
        return True

    def _send_due(self) -> int:
        backlog, post, most = self._stores.backlog, self._post, self._max_lost
        broker = BrokerSnapshot(backlog.epoch_start(post.epoch()), post.heads(backlog.queues()))
        judge, publish, fail = self._lease.judge(), self._publish, self._rows.fail
        return len(backlog.due(broker, judge=judge, max_lost=most, limit=BATCH, publish=publish, damaged=fail))

    def _publish(self, due: Sequence[Due]) -> None:
        """Publish due attempts. Lost ones go to the front of their queue, because they have waited for a turn before."""
        if not due:
            return
        for was_lost in (True, False):
            if some := [each.envelope for each in due if (each.why == "lost") is was_lost]:
                self._post.send(some, first=was_lost)
        failpoints.hit("sweep_published")
        for each in due:
            logger.debug("attempt %s published again: %s", each.envelope.key, each.why)
            if each.fence:  # the next claim has the next fence
                self._withdraw_stream(each.envelope, each.fence + 1)

    def _withdraw_stream(self, envelope: Envelope, fence: int) -> None:
        if self._withdraw is not None and (envelope.ticket.settings or {}).get("stream"):
            self._withdraw(envelope, fence)


class ParkedRuns:
    """Moves parked runs to the code that is here. Without `changes`, those whose code has changed wait for the code of their plan.

    `may_load` returns whether code can be loaded without harm to this process; `fits` returns whether a pipeline here has the bodies or models that
    a run waits for, and gets the waiting attempt too.
    """

    def __init__(
        self,
        stores: Stores,
        coordinator: Coordinator,
        lease: Lease,
        catalog: CodeRegistry,
        *,
        changes: CodeChanges | None = None,
        may_load: Callable[[str, str], bool] = lambda *_: True,
        fits: Callable[[LoadedPipeline, AwaitedCode, Envelope | None], bool] = lambda *_: True,
    ) -> None:
        self._stores, self._lease, self._catalog, self._changes = stores, lease, catalog, changes
        self._may_load, self._fits, self._rows = may_load, fits, RowByRow(coordinator)
        self._kept_parked, self._unfit = dict[str, None](), dict[object, None]()

    def unpark(self) -> None:
        """Let parked runs continue whose code is here. Code that does not load is tried once, however many runs wait for it."""
        unfit = set[tuple[str, ...]]()
        for run, *code in self._stores.plan_moves.parked(BATCH, set(self._kept_parked)):
            if tuple(code) in unfit or not self._may_load(*code):
                continue
            try:
                self._catalog.entry(*code)
            except CodeMismatch as finding:
                if finding.loaded is None or self._changes is None:
                    unfit.add(tuple(code))
                else:
                    self._rows.do(f"moving {run}", self._change_code, self._changes, run, finding.loaded.plan)
            except Unreadable as error:
                self._rows.fail(run, None, None, error)
            else:
                self._rows.do(f"unparking {run}", self._stores.plan_moves.unpark, run, self._lease.worker)
        for run, *code, awaited in self._stores.plan_moves.parked_for_code(BATCH):
            if tuple(code) not in unfit and self._may_load(*code):
                self._rows.do(f"unparking {run}", self._unpark_if_fit, run, code, awaited)

    def _unpark_if_fit(self, run: str, code: list[str], awaited: AwaitedCode) -> None:
        """Let a run continue that waits for bodies of functions or for models, if this worker has them.

        Each worker checks a run once: its code does not change.
        """
        if (run, awaited) in self._unfit:
            return
        try:
            entry = self._catalog.entry(*code)
        except CodeMismatch as finding:
            if finding.loaded is not None and self._changes is not None:
                self._change_code(self._changes, run, finding.loaded.plan)
        else:
            waiting = self._stores.backlog.envelopes([awaited.attempt]) if awaited.attempt else []
            if self._fits(entry, awaited, next(iter(waiting), None)):
                self._stores.plan_moves.unpark(run, self._lease.worker)
                return
        put_bounded(self._unfit, (run, awaited), None, most=MOST_KNOWN)

    def _change_code(self, changes: CodeChanges, run: str, plan: Plan) -> None:
        """Move a parked run to the present code. A run that may not continue under that code is not tried again: neither changes."""
        try:
            carried = changes.carry_on(run, plan)
        except Unreadable as error:
            self._rows.fail(run, None, None, error)
            return
        if carried.verdict == "refused":
            put_bounded(self._kept_parked, run, None, most=MOST_KNOWN)
