"""This process's lease: its incarnation in `flujo_workers`, the attempts that it works on, and the thread that renews it.

The thread is not the event loop's: a loop that blocks must not cost the lease. When the lease is found to be over (the process was
stopped, Postgres was away), the process takes a new incarnation and adopts what it still runs and no other worker has taken; the
rest is cancelled here, and its outcome would be refused anyway. It does the same before its lease ends if another transaction locks the lease's row.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from typing import Final

from flujo_worker.concurrency.native import native_thread
from flujo_worker.errors import RowLocked, StoreError
from flujo_worker.ports import LeaseStore, Member, Renewal
from flujo_worker.runtime.attempt_run import ActiveAttempt

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.35
"""Seconds, plus the time of a statement, until an attempt hears that its run or its fan-out was stopped: half a second in all."""


class Lease:
    """The lease of this process, which lasts `lease_s` and is renewed every `renew_s` seconds. Each incarnation of `member` gets its own id.

    `on_renewed` is called when the lease was taken, and after each renewal; `on_stop_request` once, when an operator has asked this worker to stop.
    `sharing` is how many live workers share a queue with this one, itself included, by the last renewal; None before the first.
    """

    def __init__(
        self,
        leases: LeaseStore,
        member: Member,
        *,
        lease_s: float,
        renew_s: float,
        on_renewed: Callable[[], object] = lambda: None,
        on_stop_request: Callable[[], object] = lambda: None,
    ) -> None:
        self._leases, self._member, self._lease_s, self._renew_s = leases, member, lease_s, renew_s
        self._on_renewed, self._on_stop_request = on_renewed, on_stop_request
        self._active: dict[str, ActiveAttempt] = {}
        self._is_interrupted = self._is_broken = self.is_asked_to_stop = False
        self.sharing: int | None = None
        self._let_go: set[str] = set()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        self._unbroken_since = self._beat_at = time.monotonic()
        self._thread = native_thread(self._renew_forever, "flujo-lease")

    @property
    def worker(self) -> str:
        return self._member.id

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    @property
    def silent_s(self) -> float:
        """Return the seconds since the lease was taken, or since its last renewal was begun: the lease may count from then."""
        return time.monotonic() - self._beat_at

    def start(self) -> Lease:
        """Begin the first incarnation and keep it alive."""
        self._leases.register_worker(self._member, self._lease_s)
        self._unbroken_since = self._beat_at = time.monotonic()
        self._on_renewed()
        self._thread.start()
        return self

    def stop(self) -> None:
        """End the incarnation, so that others may take its attempts at once."""
        self._stopping.set()
        self._thread.join(timeout=self._renew_s + 5)
        try:
            self._leases.deregister_worker(self.worker)
        except StoreError:
            logger.warning("could not retire worker %s; its lease will run out", self.worker)

    def may_judge(self) -> bool:
        """Return whether this process may call others dead: its own lease has lived, unbroken, for one whole lease."""
        now = time.monotonic()
        return now - self._beat_at < 2 * self._renew_s and now - self._unbroken_since >= self._lease_s

    def judge(self) -> str | None:
        """Return the present incarnation if it may call others dead; the statement that does so checks again that this incarnation has a lease."""
        worker = self.worker
        return worker if self.may_judge() else None

    def hold(self, key: str) -> ActiveAttempt | None:
        """Begin to work on an attempt. Return None if this process works on it already."""
        with self._lock:
            if key in self._active:
                return None
            active = ActiveAttempt(key, interrupted=self._is_interrupted, leaves=self.is_asked_to_stop)
            self._active[key] = active
            return active

    def let_go(self, key: str) -> None:
        """End the work on an attempt."""
        with self._lock:
            self._active.pop(key, None)
            if self._is_interrupted:
                self._let_go.add(key)

    def leave(self) -> None:
        """Let durable attempts end at their next unit: this process stops."""
        with self._lock:
            self.is_asked_to_stop = True
            for each in self._active.values():
                each.leaves = True

    def interrupt(self, *, is_broken: bool = False) -> None:
        """End the work on every attempt, to hand all of them back. If this process is broken, any of them may have broken it."""
        with self._lock:
            self._is_interrupted = True
            self._is_broken = self._is_broken or is_broken
            held = list(self._active.values())
        for each in held:
            each.interrupt()

    def hand_back(self, *, everything: bool = False) -> set[str]:
        """Release what was let go since `interrupt`, with `everything` also what is still held; return what is to be published. Raises StoreError."""
        with self._lock:
            keys = self._let_go | (set(self._active) if everything else set())
        moved = self._leases.hand_back(self.worker, keys, is_broken=self._is_broken) if keys else set()
        with self._lock:
            self._let_go -= keys
        return moved

    @property
    def keys(self) -> set[str]:
        """Return the attempts that this process works on, or has let go and not handed back."""
        with self._lock:
            return self._let_go | set(self._active)

    @property
    def is_idle(self) -> bool:
        """Return whether this process works on nothing, and has nothing to hand back."""
        return not self.keys

    def drop(self) -> None:
        """Cancel all work: other workers have it."""
        with self._lock:
            held = list(self._active.values())
        for each in held:
            each.cancel()

    def wait_for_another(self, worker: str, *, seconds: float) -> bool:
        """Wait until the incarnation is no longer `worker`; return whether it changed in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self.worker != worker or self._stopping.is_set(), seconds)

    def settle(self, late_s: float) -> None:
        """Wait, after the process stood still so long that its lease may be over, until attempts that others have taken are cancelled here.

        The event loop of the steps, which was late for `late_s` seconds, calls this before it lets any of them continue. If Postgres does not
        answer, it waits as long as a lease.
        """
        if late_s < self._renew_s or self.silent_s + self._renew_s < self._lease_s:
            return
        with self._changed:
            self._changed.wait_for(lambda: self.silent_s < self._renew_s or self._stopping.is_set(), self._lease_s)

    def _renew_forever(self) -> None:
        while not self._stopping.wait(min(self._renew_s, LOOK_S)):
            try:
                if time.monotonic() - self._beat_at >= self._renew_s - LOOK_S / 2:
                    self._renew()
                else:
                    self._cancel_lost()
            except RowLocked as error:
                logger.warning("the lease could not be renewed, trying again: %s", error)
            except StoreError:
                return
            except Exception:
                logger.exception("the lease could not be renewed; trying again")

    def _cancel_lost(self) -> None:
        """Cancel attempts that this process has lost. Only those that have lasted for `LOOK_S` are looked up: most end before."""
        if fences := self._fences(since=time.monotonic() - LOOK_S):
            lost = self._leases.lost_among(self.worker, fences)
            self._cancel({key: fences[key] for key in lost})

    def _fences(self, since: float = inf) -> dict[str, int]:
        """Return the fences of the claimed attempts that were active at that time."""
        with self._lock:
            active = self._active.items()
            return {key: each.fence for key, each in active if each.fence is not None and each.held_since <= since}

    def _renew(self) -> None:
        begun, fences = time.monotonic(), self._fences()
        renewal = self._try_to_renew(fences)
        if time.monotonic() - self._beat_at > 2 * self._renew_s:
            self._unbroken_since = time.monotonic()
        if renewal is None:
            self._reincarnate()
        else:
            self._apply(renewal, fences)
        with self._changed:
            self._beat_at = begun
            self._changed.notify_all()
        self._on_renewed()

    def _try_to_renew(self, fences: Mapping[str, int]) -> Renewal | None:
        """Renew the lease. Return None if it is over, or will be before the transaction that locks its row ends."""
        try:
            return self._leases.renew(self.worker, self._lease_s, fences)
        except RowLocked:
            if time.monotonic() - self._beat_at < self._lease_s / 2:
                raise
            return None

    def _apply(self, renewal: Renewal, fences: Mapping[str, int]) -> None:
        """Cancel lost attempts, obey a stop request, and release attempts of this worker on which it does not work."""
        self.sharing = renewal.sharing
        self._cancel({key: fences[key] for key in renewal.lost})
        if renewal.is_to_stop and not self.is_asked_to_stop:
            self.is_asked_to_stop = True
            logger.info("worker %s was asked to stop", self.worker)
            self._on_stop_request()
        for key in self._leases.release_unowned(self.worker, self.keys, self._lease_s):
            logger.warning("attempt %s was claimed here but not worked on; it counts as lost", key)

    def _reincarnate(self) -> None:
        old = self.worker
        with self._lock:
            held = {key: each.fence for key, each in self._active.items()}
        reborn = replace(self._member, id=f"{old.split('~')[0]}~{secrets.token_hex(4)}")
        adopted = self._leases.register_worker(reborn, self._lease_s, old=old, held=held.keys())
        with self._changed:
            self._member = reborn
            self._unbroken_since = time.monotonic()
            self._changed.notify_all()
        what = "lease of %s was over or locked; now %s, adopted %d of %d attempts"
        logger.warning(what, old, reborn.id, len(adopted), len(held))
        self._cancel({key: fence for key, fence in held.items() if fence is not None and key not in adopted})

    def _cancel(self, fences: Mapping[str, int]) -> None:
        """Stop work under these fences. Attempts that were claimed since the query continue: no other worker would run them."""
        for key, fence in fences.items():
            active = self._active.get(key)
            if active is None or active.fence != fence:
                continue
            # Log once, although code that does not end is cancelled each time; the code of a merged attempt has ended.
            if active.on_cancel is not None and not active.cancelled:
                logger.info("attempt %s no longer belongs to this worker", key)
            active.cancel()
