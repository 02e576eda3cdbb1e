"""Budgets in memory: what claims reserve, what outcomes settle, and the run that fails when a limit is passed."""

from __future__ import annotations

from collections.abc import Sequence

from flujo_client.contract.outcome import Fault, Usage
from flujo_worker.domain.budget import Amount, Budget, Reservation, breach, refusal
from flujo_worker.ports import ClaimId
from flujo_worker.store.memory.rows import StoredReservation
from flujo_worker.store.memory.tables import InMemory


class BudgetsInMemory(InMemory):
    """The operations of attempts on budgets. Called under the lock."""

    def reserve(self, key: str, to_reserve: Sequence[Reservation]) -> Fault | None:
        """Reserve everything or nothing; return why not. An existing reservation of the attempt stays."""
        rows = self._t.reservations.setdefault(key, {})
        if not to_reserve or any(row.is_held for row in rows.values()):
            return None
        for each in to_reserve:
            rows[each.scope] = StoredReservation(each.requested, *self._open(each).left, is_held=False)
        for each in sorted(to_reserve, key=lambda one: one.scope):
            budget = self._t.budgets[each.scope]
            if not budget.fits(each.requested):
                return refusal(budget, each.requested)
        for each in to_reserve:
            self._t.budgets[each.scope] = self._t.budgets[each.scope].reserve(each.requested)
            rows[each.scope].is_held = True
        return None

    def hold(self, key: str, holds: Sequence[Reservation]) -> Fault | None:
        """Set an attempt's reservations: all, or none, and return the fault, if a budget has too little left."""
        rows, before = self._t.reservations.setdefault(key, {}), dict[str, Budget]()
        for each in holds:
            held = rows.get(each.scope)
            own = Amount() if held is None or not held.is_held else held.amount
            budget = before[each.scope] = self._open(each).settle(Amount(), own)
            is_more = each.requested.usd > own.usd or each.requested.tokens > own.tokens
            if is_more and not budget.fits(each.requested):
                return refusal(self._t.budgets[each.scope], each.requested - own)
        for each in holds:
            left = before[each.scope].left
            self._t.budgets[each.scope] = before[each.scope].reserve(each.requested)
            rows.setdefault(each.scope, StoredReservation(each.requested, *left, is_held=True))
            rows[each.scope].amount, rows[each.scope].is_held = each.requested, True
        return None

    def restore(self, key: str, reserved: Sequence[Reservation]) -> None:
        """Record in which budgets an attempt's spend is booked, if its reservations are lost. It holds nothing."""
        if not self._t.reservations.get(key):
            lost = {each.scope: StoredReservation(Amount(), *self._open(each).left, is_held=False) for each in reserved}
            self._t.reservations[key] = lost

    def _open(self, reservation: Reservation) -> Budget:
        opened = Budget(reservation.scope, reservation.limit_usd, reservation.limit_tokens)
        return self._t.budgets.setdefault(reservation.scope, opened)

    def settle(self, run: str, claim: ClaimId, usage: Usage, *, frees: bool) -> Fault | None:
        """Record and book the spend, once for each claim; return why the run's tree fails, if that passes a limit."""
        is_first = not usage.is_nothing and claim not in self._t.spends
        if is_first:
            self._t.spends[claim] = usage
        return self.book(run, claim.key, Amount.of(usage) if is_first else Amount(), frees=frees)

    def book(self, run: str, key: str, spent: Amount, *, frees: bool) -> Fault | None:
        """Book an attempt's spend in its budgets. Return the fault if its tree of runs fails, because a limit is passed."""
        passed = []
        for scope, row in self._t.reservations.get(key, {}).items():
            back = row.amount if frees and row.is_held else Amount()
            row.is_held = row.is_held and not frees
            before = self._t.budgets[scope]
            self._t.budgets[scope] = before.settle(spent, back)
            if self._t.budgets[scope].overrun != before.overrun:
                passed.append(self._t.budgets[scope])
        found = breach(passed, key)
        if found is not None:
            self._break(run, key, *found)
        return None if found is None else found[0]

    def _break(self, run: str, key: str, fault: Fault, violation: dict[str, object]) -> None:
        """Mark the first run of the tree to fail; if this very merge has ended it, fail it now."""
        row = self._t.runs[str((self._t.runs[run].ticket.limits or {})["run"])]
        if row.ended_at is None and row.is_live and row.fault is None:
            row.stopped_at = row.stopped_at or self._t.clock()
        elif row.ticket.run != run or row.ended_by != key:
            return
        else:
            row.status, row.output = "failed", None
            ended = ("run.succeeded", "run.failed")
            self._t.events[:] = [each for each in self._t.events if (each.attempt, each.name in ended) != (key, True)]
            self._t.add_event(row.ticket.run, key, "run.failed", "error", {"reason": fault.message})
        row.fault, row.reason, row.failed_key = fault, fault.message, key
        self._t.add_event(row.ticket.run, key, "flujo.budget.violation", "error", dict(violation))

    def release(self, run: str) -> None:
        """Release the reservations of an ended run."""
        for row in self._t.attempts_of(run):
            self.unreserve(str(row.key))

    def unreserve(self, key: str) -> None:
        for scope, held in self._t.reservations.get(key, {}).items():
            if held.is_held:
                held.is_held = False
                self._t.budgets[scope] = self._t.budgets[scope].settle(Amount(), held.amount)
