"""Do recurring work: every process does its own chores, and one process at a time sweeps for the whole fleet."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from flujo_worker.attempts.lease import Lease
from flujo_worker.changed_code.code_registry import put_bounded
from flujo_worker.concurrency.recurring import RecurringWork
from flujo_worker.coordinator.coordinator import Coordinator
from flujo_worker.errors import DispatchError, RowLocked, StoreError, Unreadable
from flujo_worker.ports import ClaimId, Stores

logger = logging.getLogger(__name__)

BATCH = 200
TURN, NO_JUDGES_TURN = 0.8, 2.5
"""The maximum number of sweep intervals since the fleet's last sweep, for a process that may declare others dead and for a process that may not yet."""
LEAVE_LOCKED_S = 10.0
"""Seconds that sweeps leave a row alone after they found it locked."""


class Chore(NamedTuple):
    """Something to do in each sweep, or less often."""

    run: Callable[[], Any]
    every_s: float = 0.0
    """The minimum number of seconds between two runs. A chore whose `run` returns False is due again in the next sweep."""


class Sweeper(RecurringWork):
    """Does chores in a thread. A chore that finds a row locked is left to the next sweep, and delays no other.

    Each process does the chores `before` again and again. The process whose turn it is then does the chores of the fleet's `sweep`, the last of which
    returns how many messages it sent, and the chores `after`. The whole fleet sweeps once in `every_s` seconds.
    """

    def __init__(
        self,
        stores: Stores,
        lease: Lease,
        sweep: Sequence[Chore],
        *,
        before: Sequence[Chore] = (),
        after: Sequence[Chore] = (),
        every_s: float = 1.0,
    ) -> None:
        super().__init__(self._sweep_in_turn, "a sweep", "flujo-sweeper", every_s=every_s)
        self._stores, self._lease = stores, lease
        self._sweep, self._before, self._after = sweep, before, after
        self._due_at = dict[Chore, float]()

    def sweep(self) -> int:
        """Sweep once, without waiting for a turn; return how many messages were sent."""
        return int(self._do(self._sweep) or 0)

    def _do(self, chores: Sequence[Chore]) -> Any:
        """Do the chores that are due; return the result of the last one."""
        done = None
        for chore in chores:
            now, done = time.monotonic(), None
            if now < self._due_at.get(chore, now):
                continue
            self._due_at[chore] = now + chore.every_s
            try:
                done = chore.run()
            except RowLocked as error:
                logger.warning("a part of a sweep is left to the next one: %s", error)
            if done is False:
                del self._due_at[chore]
        return done

    def _take_turn(self) -> bool:
        """Take the fleet's turn to sweep; return False if another process has it. While the row of turns is locked, every process sweeps.

        A process that may not judge leaves the turn to others: its sweep would find no worker lost.
        """
        patience = TURN if self._lease.judge() is not None else NO_JUDGES_TURN
        try:
            return self._stores.backlog.begin_sweep(self._lease.worker, self.every_s * patience)
        except RowLocked as error:
            logger.warning("sweeping without a turn: %s", error)
            return True

    def _sweep_in_turn(self) -> None:
        self._do(self._before)
        if self._take_turn():
            while self.sweep() == BATCH and not self.stopping.is_set():
                pass
            self._do(self._after)


class RowByRow:
    """Does one thing for each of many rows: an error with one must not delay the others."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator, self._locked_until = coordinator, dict[str, float]()

    def do(self, what: str, act: Callable[..., object], *args: Any, **options: Any) -> bool:
        """Call `act`, and return whether it succeeded. Raises StoreError if the store is away; other errors are logged.

        A locked row is left alone for a while: each try takes as long as a statement waits for a lock.
        """
        now = time.monotonic()
        if self._locked_until.get(what, now) > now:
            return False
        try:
            act(*args, **options)
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

    def move(self, run: str, what: str, act: Callable[..., object], *args: Any, **options: Any) -> None:
        """Move a run on, or fail it if its rows do not allow that."""

        def move() -> None:
            try:
                act(*args, **options)
            except (StoreError, DispatchError):
                raise
            except Exception as error:
                logger.exception("%s of %s failed", what, run)
                self.fail(run, None, None, Unreadable(f"{what} failed: {error}", cause=error))

        self.do(f"{what} of {run}", move)

    def fail(self, run: str, key: str | None, fence: int | None, error: Unreadable) -> None:
        """Fail a run whose rows cannot be read."""
        self.do(f"failing {run}", self._coordinator.break_off, run, error, ClaimId(key, fence) if key else None)
