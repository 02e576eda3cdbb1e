"""This process's right to work: its incarnation in `flujo_workers`, what it holds, and the thread that renews it.

The thread is not the event loop's: a loop that blocks must not cost the lease. When the lease is found to be over (the process was
stopped, Postgres was away), the process takes a new incarnation and adopts what it still runs and no other worker has taken; the
rest is cancelled here, and its outcome would be refused anyway. It does so too, in time, while somebody else holds the row of its lease.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
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
        self._held: dict[str, ActiveAttempt] = {}
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
        """End the incarnation; what is still held may be taken by others at once."""
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
        """Hold a key for the time of an attempt; None if this process works on it already."""
        with self._lock:
            if key in self._held:
                return None
            held = self._held[key] = ActiveAttempt(key, interrupted=self._is_interrupted, leaves=self.is_asked_to_stop)
            return held

    def let_go(self, key: str) -> None:
        """Hold a key no longer."""
        with self._lock:
            self._held.pop(key, None)
            if self._is_interrupted:
                self._let_go.add(key)

    def leave(self) -> None:
        """Let durable attempts end at their next unit: this process stops."""
        with self._lock:
            self.is_asked_to_stop = True
            for each in self._held.values():
                each.leaves = True

    def interrupt(self, *, is_broken: bool = False) -> None:
        """End the work on every attempt, and remember from now on which were let go. If this process is broken, any of them may have done that."""
        with self._lock:
            self._is_interrupted = True
            self._is_broken = self._is_broken or is_broken
            held = list(self._held.values())
        for each in held:
            each.interrupt()

    def hand_back(self, *, everything: bool = False) -> set[str]:
        """Release what was let go since `interrupt`, with `everything` also what is still held; return what is to be published. Raises StoreError."""
        with self._lock:
            keys = self._let_go | (set(self._held) if everything else set())
        moved = self._leases.hand_back(self.worker, keys, is_broken=self._is_broken) if keys else set()
        with self._lock:
            self._let_go -= keys
        return moved

    @property
    def keys(self) -> set[str]:
        """Return the attempts that this process works on, or has let go and not handed back."""
        with self._lock:
            return self._let_go | set(self._held)

    @property
    def is_idle(self) -> bool:
        """Return whether this process works on nothing, and has nothing to hand back."""
        return not self.keys

    def drop(self) -> None:
        """Wait no longer for the work that is still held: others have it."""
        with self._lock:
            held = list(self._held.values())
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
                    self._look()
            except RowLocked as error:
                logger.warning("the lease could not be renewed, trying again: %s", error)
            except StoreError:
                return
            except Exception:
                logger.exception("the lease could not be renewed; trying again")

    def _look(self) -> None:
        """Stop what must no longer run. Attempts are asked about once they have lasted a moment; most have ended by then."""
        before = time.monotonic() - LOOK_S
        if held := self._claimed(lambda each: each.held_since <= before):
            lost = self._leases.lost_among(self.worker, held)
            self._cancel({key: held[key] for key in lost})

    def _claimed(self, counts: Callable[[ActiveAttempt], bool] = lambda _: True) -> dict[str, int]:
        with self._lock:
            return {key: each.fence for key, each in self._held.items() if each.fence is not None and counts(each)}

    def _renew(self) -> None:
        begun, held = time.monotonic(), self._claimed()
        renewal = self._renewed(held)
        if time.monotonic() - self._beat_at > 2 * self._renew_s:
            self._unbroken_since = time.monotonic()
        if renewal is None:
            self._reincarnate()
        else:
            self._hear(renewal, held)
        with self._changed:
            self._beat_at = begun
            self._changed.notify_all()
        self._on_renewed()

    def _renewed(self, held: Mapping[str, int]) -> Renewal | None:
        """Renew the lease; None: it is over, or somebody else holds its row, so that another one is to be taken before it is over."""
        try:
            return self._leases.renew(self.worker, self._lease_s, held)
        except RowLocked:
            if time.monotonic() - self._beat_at < self._lease_s / 2:
                raise
            return None

    def _hear(self, renewal: Renewal, held: Mapping[str, int]) -> None:
        """Act on what a renewal says, and release what is recorded as ours and not worked on: its outcome was refused, or could not be reported."""
        self.sharing = renewal.sharing
        self._cancel({key: held[key] for key in renewal.lost})
        if renewal.is_to_stop and not self.is_asked_to_stop:
            self.is_asked_to_stop = True
            logger.info("worker %s was asked to stop", self.worker)
            self._on_stop_request()
        for key in self._leases.release_unowned(self.worker, self.keys, self._lease_s):
            logger.warning("attempt %s was claimed here but not worked on; it counts as lost", key)

    def _reincarnate(self) -> None:
        old = self.worker
        with self._lock:
            held = {key: each.fence for key, each in self._held.items()}
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
            held = self._held.get(key)
            if held is None or held.fence != fence:
                continue
            # Nothing runs any more of one that was merged meanwhile; one whose work does not end is cancelled each time, and logged once.
            if held.on_cancel is not None and not held.cancelled:
                logger.info("attempt %s no longer belongs to this worker", key)
            held.cancel()
