"""Let parked runs continue whose code is here. Each process looks for itself, for no other one knows its code."""

from __future__ import annotations

from collections.abc import Callable

from flujo_client.contract.code import AwaitedCode
from flujo_client.contract.envelope import Envelope
from flujo_client.plan.plan import Plan
from flujo_worker.attempts.lease import Lease
from flujo_worker.changed_code.code_changes import CodeChanges
from flujo_worker.changed_code.code_registry import CodeMismatch, CodeRegistry, LoadedPipeline, put_bounded
from flujo_worker.coordinator.coordinator import Coordinator
from flujo_worker.errors import Unreadable
from flujo_worker.ports import Store
from flujo_worker.recovery.sweeper import BATCH, RowByRow

UNPARK_EVERY_S = 5.0
MOST_KNOWN = 100_000
"""Runs that a process remembers it cannot move, and runs that wait for other bodies or models than it has."""


class ParkedRuns:
    """Moves parked runs to the code that is here. Without `changes`, those whose code has changed wait for the code of their plan.

    `may_load` returns whether code can be loaded without harm to this process; `fits` whether a pipeline here has the bodies or models that a run
    waits for, by the waiting attempt.
    """

    def __init__(
        self,
        store: Store,
        coordinator: Coordinator,
        lease: Lease,
        catalog: CodeRegistry,
        *,
        changes: CodeChanges | None = None,
        may_load: Callable[[str, str], bool] = lambda *_: True,
        fits: Callable[[LoadedPipeline, AwaitedCode, Envelope | None], bool] = lambda *_: True,
    ) -> None:
        self._store, self._lease, self._catalog, self._changes = store, lease, catalog, changes
        self._may_load, self._fits, self._rows = may_load, fits, RowByRow(coordinator)
        self._kept_parked, self._unfit = dict[str, None](), dict[object, None]()

    def unpark(self) -> None:
        """Let those continue whose code is here; what does not load is tried once, however many runs wait for it."""
        unfit = set[tuple[str, ...]]()
        for run, *code in self._store.parked(BATCH, set(self._kept_parked)):
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
                self._rows.do(f"unparking {run}", self._store.unpark, run, self._lease.worker)
        for run, *code, awaited in self._store.parked_for_code(BATCH):
            if tuple(code) not in unfit and self._may_load(*code):
                self._rows.do(f"unparking {run}", self._unpark_if_fit, run, code, awaited)

    def _unpark_if_fit(self, run: str, code: list[str], awaited: AwaitedCode) -> None:
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
                self._store.unpark(run, self._lease.worker)
                return
        put_bounded(self._unfit, (run, awaited), None, most=MOST_KNOWN)

    def _change_code(self, changes: CodeChanges, run: str, plan: Plan) -> None:
        """Move a parked run to the present code. A run that may not continue under it is not tried again: neither changes."""
        try:
            carried = changes.carry_on(run, plan)
        except Unreadable as error:
            self._rows.fail(run, None, None, error)
            return
        if carried.verdict == "refused":
            put_bounded(self._kept_parked, run, None, most=MOST_KNOWN)
