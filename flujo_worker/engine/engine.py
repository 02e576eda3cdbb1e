"""The engine's event loop: attempts are coroutines on it, from their message to their merge. One in each process, in a separate thread.

Users' code never runs here but on the loop of `event_loop.py`, so an agent that blocks delays no claim and no merge.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from flujo_worker.concurrency.call_context import may_wait_for_locks
from flujo_worker.concurrency.event_loop import Inbox
from flujo_worker.concurrency.threads import carried
from flujo_worker.engine.claim_ahead import ClaimAhead
from flujo_worker.errors import RowLocked
from flujo_worker.ports import Claim, PlanName
from flujo_worker.runtime.batcher import Batcher
from flujo_worker.runtime.effects import FIRST_WAIT_S, LONGEST_WAIT_S, claim_alone, note_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Sequence
    from concurrent.futures import Executor, Future
    from typing import Unpack

    from flujo_client.contract.envelope import Envelope
    from flujo_client.transport.loop_publisher import Taken
    from flujo_worker.domain.values import Decision, FanOut
    from flujo_worker.engine.dispatch import Sender
    from flujo_worker.ports import ClaimTerms, Committed, Stores
    from flujo_worker.store.postgres.groups import GroupedLedger


logger = logging.getLogger(__name__)

P = ParamSpec("P")
Q = TypeVar("Q")
T = TypeVar("T")

LEAVE_SLOT_S = 0.25
"""Seconds after which a merge that goes alone leaves its attempt's slot to others."""

WARY_S = 10.0
"""Seconds after a lock was found that merges which go alone first ask whether their rows are locked."""

BUDGET_LOCKED_S = 1.0
"""Seconds that claims of a locked budget are refused without asking."""

PORTION: Final = 64
"""The maximum number of branches that are published at once."""

LOCKED: Final = Claim(refusal="locked")

CLOSING_S = 5.0
"""Seconds that the loop may take for its last work, and to stop."""


class Engine:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.inbox = Inbox(self.loop)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self.loop.run_forever, name="flujo-engine", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def begin(self, work: Coroutine[Any, Any, object]) -> None:
        """Start to carry out a message. Called on the loop."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def drop(self) -> None:
        """Cancel all messages that are being carried out."""
        self.inbox.put(self._cancel_tasks)

    def _cancel_tasks(self) -> None:
        # After their first step: a coroutine that never began would not free its slot.
        for task in tuple(self._tasks):
            self.loop.call_soon(task.cancel)

    def carries_one(self) -> bool:
        """Return whether only one message is being carried out."""
        return len(self._tasks) == 1

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Carry out work on the loop, and wait for it in another thread."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("the engine would wait for itself")
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def close(self, last: Coroutine[Any, Any, object] | None = None) -> None:
        """Run one last coroutine and stop the loop. Other work is dropped, and recovered by other workers' sweeps."""
        if last is not None:
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(last, self.loop).result(CLOSING_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=CLOSING_S)


def _end(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


class LoopEffects:
    """Effects for attempts on the engine's loop: the common ones are awaited there, other blocking calls go to a thread.

    Args:
        engine: the owner of the loop.
        stores: claims attempts and commits decisions, one by one.
        groups: the same for many at once; the store handles requests without an answer.
        threads: for blocking calls.
        sender: publishes; the beginning of a fan-out in a thread.
        at_once: the connections of the store. Single requests use half of them at once, and those that had to wait for a lock a quarter.

    Attributes:
        ahead: claims what follows in a merge, and takes the next message at once, if nothing else is under way.
        sharing: returns how many live workers share this process's queues; None while that is not known.
    """

    def __init__(
        self, engine: Engine, stores: Stores, groups: GroupedLedger, threads: Executor, sender: Sender, *, at_once: int
    ) -> None:
        self._claims_alone, self._commits_after_lock = (asyncio.Semaphore(max(1, at_once // 4)) for _ in range(2))
        self._merges_alone = asyncio.Semaphore(max(1, at_once // 2))
        self._locks_seen_at = float("-inf")
        self._locked_budgets: dict[str, float] = {}
        self._engine, self._stores, self._groups, self._threads = engine, stores, groups, threads
        self._sender, self.ahead = sender, ClaimAhead(engine.carries_one)
        self.sharing: Callable[[], int | None] = lambda: None
        self._batchers: dict[Callable[..., Any], Batcher[Any, Any]] = {}

    async def claim(self, envelope: Envelope, worker: str, **terms: Unpack[ClaimTerms]) -> Claim:
        self.ahead.worker = worker
        if (claimed := self.ahead.pop(envelope.key)) is not None:
            return claimed
        budgets = {each.scope for each in terms["to_reserve"]}
        known = budgets & self._locked_budgets.keys()
        if any(self._locked_budgets[each] > self._engine.loop.time() for each in known):
            return LOCKED
        if terms["room"] == "shared" and not known:
            plan, fan_outs = PlanName(envelope.ticket.reference, envelope.ticket.fingerprint), tuple(envelope.lanes)
            reserves = terms["to_reserve"]
            claim = await self._groups.claim(envelope.key, worker, fan_outs=fan_outs, plan=plan, to_reserve=reserves)
            if claim is not None:
                return claim
            is_wary = budgets and self._engine.loop.time() - self._groups.budgets_locked_at < BUDGET_LOCKED_S
            if await self._is_locked(envelope.key) or (is_wary and await self._are_locked(budgets)):
                return LOCKED
        self._remember_locked(known)  # so that one claim asks for all
        async with self._claims_alone:
            claim = await self.call(claim_alone, self._stores, envelope, worker, **terms)
        if claim.refusal == "locked" and budgets:
            await self._are_locked(budgets)
        elif known:
            self._locked_budgets = {each: at for each, at in self._locked_budgets.items() if each not in known}
        return claim

    async def _are_locked(self, budgets: Collection[str]) -> bool:
        """Return whether any of these budgets is locked, and remember which."""
        locked = await self.call(self._stores.attempts.locked_budgets, budgets)
        self._remember_locked(locked)
        return bool(locked)

    async def _is_locked(self, key: str) -> bool:
        """Return whether another transaction has locked the rows of an attempt."""
        return key in await self.together(self._locked_among, key)

    def _remember_locked(self, budgets: Collection[str]) -> None:
        """Refuse claims of these budgets for a moment, without a query."""
        self._locked_budgets |= dict.fromkeys(budgets, self._engine.loop.time() + BUDGET_LOCKED_S)

    def _locked_among(self, asked: Sequence[str]) -> list[set[str]]:
        return [self._stores.attempts.locked_among(asked)] * len(asked)

    async def commit(self, decision: Decision) -> Committed:
        asked = self.ahead.asking(decision)
        committed = await self._groups.commit(asked)
        if committed is None:
            slow = self._engine.loop.call_later(LEAVE_SLOT_S, may_wait_for_locks)
            try:
                committed = await self._commit_alone(asked)
            except RowLocked:
                asked, committed = decision, await self._commit_when_free(decision)
            finally:
                slow.cancel()
        if asked is not decision:
            self.ahead.note(asked, committed)
        return committed

    async def _commit_alone(self, decision: Decision) -> Committed:
        """Merge a decision with a separate statement; while others hold locks, without waiting for one."""
        loop = self._engine.loop
        async with self._merges_alone:
            is_wary = loop.time() - self._locks_seen_at < WARY_S
            if is_wary and await self._is_locked(decision.notice.envelope.key):
                raise RowLocked(f"the rows of attempt {decision.notice.envelope.key} are locked")
            try:
                return await self.call(self._stores.attempts.commit, decision)
            except RowLocked:
                self._locks_seen_at = loop.time()
                raise

    async def _commit_when_free(self, decision: Decision) -> Committed:
        """Merge a decision once its rows are unlocked. Until then its attempt remains this worker's, but leaves its slot to others."""
        key, wait_s = decision.notice.envelope.key, FIRST_WAIT_S
        if not may_wait_for_locks():
            raise RowLocked(f"the rows of attempt {key} are locked")
        await self.call(note_lock, self._stores, decision.notice.envelope)
        while True:
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.5))  # noqa: S311 - spreads retries, guards nothing
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
            if await self._is_locked(key):
                continue
            with suppress(RowLocked):
                async with self._commits_after_lock:
                    return await self.call(self._stores.attempts.commit, decision)

    async def send(self, envelopes: Sequence[Envelope], fan_out: FanOut | None) -> None:
        first = envelopes[0]
        if fan_out is not None:
            if await self.call(self._sender.open_chord, first, fan_out):
                await self._begin_branches(envelopes)
            return
        is_next, is_claimed = self.ahead.takes(envelopes), self.ahead.has(first.key)
        taken = await self._sender.push(envelopes, take=int(is_next), is_claimed=is_claimed) or ()
        self.ahead.published(first, taken)
        await self._take(taken, first)

    async def _begin_branches(self, envelopes: Sequence[Envelope]) -> None:
        """Publish a fan-out in portions, so that the first branches run meanwhile. Take this process's share of each portion back."""
        first, workers = envelopes[0], self.sharing()
        spare = partial(self.ahead.taker.spare, first.kind, first.queue)
        share = spare() // workers if workers else 0
        for begin in range(0, len(envelopes), PORTION):
            portion = envelopes[begin : begin + PORTION]
            take = min(share, spare(), len(portion) // workers) if workers else 0
            taken = await self._sender.push(portion, take=take)
            if taken is None:  # the rest is left to the sweeper too
                return
            share -= len(taken)
            await self._take(taken, first)

    async def _take(self, taken: Sequence[Taken], published: Envelope) -> None:
        """Carry out messages that were taken when others were published, or put them back."""
        for each in taken:
            if each.own is not None:
                self.ahead.taker.take_own(each.own)
            elif not self.ahead.taker.take_item(each.message, published.queue):
                await self.call(self._sender.put_back, each.message, published)

    async def together(self, act: Callable[[Sequence[Q]], Sequence[T]], item: Q) -> T:
        batcher = self._batchers.get(act)
        if batcher is None:
            batcher = self._batchers[act] = Batcher(lambda items: self.call(act, items))
        result: T = await batcher(item)
        return result

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.result(self._threads.submit(carried(partial(function, *args, **kwargs))))

    async def result(self, future: Future[T]) -> T:
        if not future.done():
            ended = self._engine.loop.create_future()
            future.add_done_callback(lambda _: self._engine.inbox.put(partial(_end, ended)))
            await ended
        return future.result()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._engine.run(work)
