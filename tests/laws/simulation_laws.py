"""The laws that a simulation is held to: some at every moment, the rest at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

from simulated_runs import Case, family
from simulated_world import Broker

from flujo_client.contract.outcome import Usage
from flujo_worker.domain.budget import Amount
from flujo_worker.domain.values import AttemptReport
from flujo_worker.errors import DispatchError, StoreError, Unreadable
from flujo_worker.store.memory.rows import StoredAttempt
from flujo_worker.store.memory.stores import MemoryStores


class LawBroken(AssertionError):
    """The engine broke a law."""


class Watch:
    """Looks at every statement of every worker. What it finds is raised by `look`, for the engine handles what its statements raise.

    Attributes:
        merged: how often the outcome of each attempt was merged.
    """

    def __init__(self, stores: MemoryStores) -> None:
        self._tables, self._found = stores.tables, list[str]()
        self.merged = Counter[str]()
        self._permitted: dict[str, tuple[str, int]] = {}

    def look(self) -> None:
        """Raise LawBroken if a statement has broken a law."""
        if self._found:
            raise LawBroken(self._found[0])

    def statement(self, name: str, act: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Carry out a statement, and look at what it did."""
        at_work = name == "claim" and self._is_at_work(self._tables.attempts.get(args[0]), args[1])
        holds = name == "commit" and self._holds(args[0].notice)
        try:
            answer = act(*args, **kwargs)
        except (StoreError, DispatchError, Unreadable):
            raise
        except Exception as error:
            self._found.append(f"{name} raised {type(error).__name__}: {error}")
            raise
        if name == "release_permit":  # its process is done with it, even where its outcome could not be merged
            self._permitted.pop(args[0], None)
        elif name == "claim" and answer.fence is not None:
            if at_work:
                self._found.append(f"{args[0]} was claimed while a living worker had it")
            self._count_runs(args[0])
        elif name == "commit" and answer.verdict == "merged":
            self._count_merge(args[0].notice.envelope.key, holds)
        elif name == "request_permit" and answer:
            self._permitted[args[0].key] = (args[0].name, args[0].fence)
            self._count_permits(args[0].name, args[0].at_once)
        return answer

    def _is_at_work(self, row: StoredAttempt | None, worker: str) -> bool:
        return (
            row is not None and row.status == "running" and row.worker != worker and self._tables.is_leased(row.worker)
        )

    def replica(self) -> Callable[[], None]:
        """Copy all rows, and what was seen of them; return what puts them in the place of later ones. Plans never change, and are shared."""
        rows = {name: rows for name, rows in vars(self._tables).items() if name not in ("clock", "lock")}
        kept = deepcopy(rows, {id(plan): plan for plan in self._tables.plans.values()})
        merged, permitted = self.merged.copy(), self._permitted.copy()

        def take_over() -> None:
            vars(self._tables).update(kept)
            self.merged, self._permitted = merged, permitted

        return take_over

    def _holds(self, notice: AttemptReport) -> bool:
        row = self._tables.attempts.get(notice.envelope.key)
        return row is not None and (row.status, row.fence) == ("running", notice.fence)

    def _count_merge(self, key: str, holds: bool) -> None:
        if not holds:
            self._found.append(f"{key} was merged by a worker that no longer had it")
        self.merged[key] += 1
        if self.merged[key] > 1:
            self._found.append(f"{key} was merged twice")

    def _count_permits(self, name: str, at_once: int) -> None:
        """Count the attempts that were let through and still run, by what the rows say of them and not by the permits."""
        running = [key for key, (of, fence) in self._permitted.items() if of == name and self._runs(key, fence)]
        if len(running) > at_once:
            self._found.append(f"{running} run under limit {name} of {at_once}")

    def _runs(self, key: str, fence: int) -> bool:
        row = self._tables.attempts.get(key)
        is_running = row is not None and (row.status, row.fence) == ("running", fence)
        return is_running and self._tables.is_leased(row.worker)

    def _count_runs(self, key: str) -> None:
        """Count the runs that have begun and have not ended, at each gate of the one that was claimed just now."""
        run = self._tables.runs[self._tables.attempts[key].key.run]
        under_way = [each for each in self._tables.runs.values() if each.is_live and each.started_at is not None]
        for gate in run.gates:
            at_gate = [each.ticket.run for each in under_way if any(other.name == gate.name for other in each.gates)]
            if gate.most is not None and len(at_gate) > gate.most:
                self._found.append(f"{at_gate} are under way at {gate.name} of {gate.most}")


def laws_at_the_end(stores: MemoryStores, broker: Broker, watch: Watch, cases: Sequence[Case]) -> None:
    """Raise LawBroken unless every run has ended as it should, and nothing is left over."""
    watch.look()
    tables = stores.tables
    left = [key for key, row in tables.attempts.items() if row.is_live]
    left += [f"scope {place}" for place, scope in tables.scopes.items() if scope.is_open]
    left += [f"run {run}" for run, row in tables.runs.items() if row.is_live]
    left += [f"waiting run {run}" for run in tables.waiting_runs]
    left += [f"place of {run} at {gate}" for gate, places in tables.places.items() for run in places]
    left += [f"permit of {key}" for key, permit in tables.permits.items() if stores.limits._uses_permit(key, permit)]
    left += [
        f"reservation of {key}" for key, rows in tables.reservations.items() if any(r.is_held for r in rows.values())
    ]
    _require(not left and not broker.messages, f"left over: {left}, {len(broker.messages)} messages")
    for case in cases:
        _judge(stores, watch, case)


def _judge(stores: MemoryStores, watch: Watch, case: Case) -> None:
    tables = stores.tables
    root = tables.runs[case.run]
    if root.asked:
        _require(root.status == "cancelled", f"{case.run} ({case.name}) was cancelled and is {root.status}")
    else:
        difference = case.difference(stores)
        _require(not difference, f"{case.name} ended otherwise than where nothing goes wrong: {difference}")
    spent = Usage()
    for run in family(stores, case.run):
        for row in tables.attempts_of(run.ticket.run):
            key, merges = str(row.key), watch.merged[str(row.key)]
            was_merged = row.status == "succeeded"
            _require(merges == 1 or not was_merged, f"{key} succeeded and was merged {merges} times")
        spent = sum(
            (usage for (key, _, _), usage in tables.spends.items() if key.startswith(f"{run.ticket.run}:")),
            spent,
        )
    budget = tables.budgets.get(f"run:{case.run}")
    if budget is not None:
        _require(budget.reserved == Amount(), f"{case.run} still reserves {budget.reserved}")
        _require(budget.spent == Amount.of(spent), f"{case.run} has spent {spent}, and {budget.spent} is booked")


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise LawBroken(what)
