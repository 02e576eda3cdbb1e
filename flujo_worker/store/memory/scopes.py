"""The scopes of runs in memory: join signals, lanes, and winding down aborted work."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from flujo_client.address import AttemptKey
from flujo_client.transport.chords import NO_LANE
from flujo_worker.domain.values import ChildRunRow, ScopeRow
from flujo_worker.ports import FanOutPlace
from flujo_worker.store.memory.rows import StoredAttempt, StoredRun, StoredScope
from flujo_worker.store.memory.tables import InMemory
from flujo_worker.store.shared_rules import grace_s

JOIN: Final = "join"


class ScopesInMemory(InMemory):
    def scope(self, run: str, address: str) -> ScopeRow | None:
        scope = self._t.scopes.get((run, address))
        return None if scope is None else scope.row()

    def children(self, run: str, address: str) -> list[ScopeRow]:
        return [scope.row(context=False) for scope in self._t.children_of(run, address)]

    def signal_join(self, run: str, address: str, queue: str, by: str) -> bool:
        scope = self._t.scopes.get((run, address))
        if scope is None or scope.step is None:
            return False
        key, now = AttemptKey(run, address, scope.step, 1, JOIN), self._t.clock()
        if self._is_joinable(run, scope):
            self._t.add_attempt(StoredAttempt(key, JOIN, queue, now + grace_s(1), now))
            self._t.add_event(run, str(key), "join.rung", "info", {"by": by})
        return str(key) in self._t.attempts and self._t.attempts[str(key)].is_live

    def child_run(self, run: str) -> ChildRunRow | None:
        row = self._t.runs.get(run)
        return None if row is None else row.child_row(self._t.scopes[run, row.ticket.root].context)

    def aborted_among(self, fan_outs: Collection[FanOutPlace]) -> set[FanOutPlace]:
        return {each for each in fan_outs if each in self._t.scopes and self._t.scopes[each].aborted}

    def closed_among(self, fan_outs: Collection[FanOutPlace]) -> set[FanOutPlace]:
        return {each for each in fan_outs if not self._has_open_child(*each)}

    def wind_down_branches(self, run: str, fan_out: str) -> None:
        fan_out_scope = self._t.scopes.get((run, fan_out))
        if fan_out_scope is None or not fan_out_scope.aborted:
            return
        now = self._t.clock()
        for row in self._t.attempts_of(run):
            if row.status in ("ready", "queued", "paused") and _is_beneath(row.key.address, fan_out):
                row.cancel("aborted", now)
        busy = [row.key.address for row in self._t.attempts_of(run) if row.is_live]
        for scope in self._t.scopes_of(run):
            is_busy = any(each == scope.address or _is_beneath(each, scope.address) for each in busy)
            if scope.is_open and _is_beneath(scope.address, fan_out) and not is_busy:
                scope.wind_down("abort", now)

    def is_last_of_lane(self, run: str, branch: str, key: str) -> bool:
        scope = self._t.scopes.get((run, branch))
        return scope is not None and scope.closed_by == key and self.after_in_lane(run, scope) is None

    def missed_joins(self, limit: int, older_s: float) -> list[tuple[str, str]]:
        due = [(run, scope) for run, scope in self._waiting() if self._is_joinable(run, scope)]
        before = self._t.clock() - older_s
        return [(run, scope.address) for run, scope in due if self._quiet_since(run, scope) < before][:limit]

    def aborted(self, limit: int) -> list[tuple[str, str]]:
        live = [(run, scope.address) for run, scope in self._waiting() if scope.aborted and self._may_merge(run)]
        return [each for each in live if self._has_open_child(*each)][:limit]

    def idle_lanes(self, limit: int) -> list[tuple[str, str, int]]:
        live = [(run, scope) for run, scope in self._waiting() if self._may_merge(run)]
        return [(run, scope.address, lane) for run, scope in live for lane in self._idle_in(run, scope)][:limit]

    def give_lane(self, run: str, fan_out: str, lane: int) -> None:
        if lane not in self._used_lanes(run, fan_out):
            self.take(run, fan_out, lane, after_s=0.0)

    def orphaned_children(self, limit: int) -> list[str]:
        return [run.ticket.run for run in self._t.runs.values() if run.is_live and self._is_orphan(run)][:limit]

    def stranded(self, limit: int) -> list[str]:
        return [run for run, row in self._t.runs.items() if self._t.may_merge(row) and self._is_stranded(run)][:limit]

    def _is_stranded(self, run: str) -> bool:
        if any(row.is_live and not row.is_held for row in self._t.attempts_of(run)):
            return False
        waiting = [scope for owner, scope in self._waiting() if owner == run]
        children = [each for scope in waiting for each in self._t.child_runs_of(run, scope.address)]
        moves = (scope.aborted or self._is_joinable(run, scope) or self._idle_in(run, scope) for scope in waiting)
        return not (any(moves) or any(each.is_live for each in children))

    def _idle_in(self, run: str, scope: StoredScope) -> set[int]:
        """Return the lanes of a fan-out whose branches wait for one while none runs."""
        branches = self._t.children_of(run, scope.address)
        waits = any(row.is_held for each in branches if each.is_open for row in self._t.rows_at[run, each.address])
        if scope.aborted or not waits or self._used_lanes(run, scope.address):
            return set()
        return {each.lanes.get(scope.address, 0) for each in branches} - {NO_LANE}

    def _used_lanes(self, run: str, fan_out: str) -> set[int]:
        branches = self._t.children_of(run, fan_out)
        return {each.lanes[fan_out] for each in branches if each.is_open and fan_out in each.lanes} - {NO_LANE}

    def _is_orphan(self, run: StoredRun) -> bool:
        parent, at = run.parent_run, run.parent_address
        if parent is None or at is None:
            return False
        return not self._t.scopes[parent, at].is_open or self._t.runs[parent].stopped_at is not None

    def _may_merge(self, run: str) -> bool:
        return self._t.may_merge(self._t.runs[run])

    def _waiting(self) -> Iterator[tuple[str, StoredScope]]:
        return ((run, scope) for (run, _), scope in self._t.scopes.items() if scope.waiting and scope.is_open)

    def _has_open_child(self, run: str, address: str) -> bool:
        return any(child.is_open for child in self._t.children.get((run, address), ()))

    def _is_joinable(self, run: str, scope: StoredScope) -> bool:
        """Return whether a join is due: its branches or its child run have ended, and no signal has created it."""
        if not (scope.waiting and scope.is_open and self._may_merge(run)):
            return False
        waits = any(each.is_live for each in self._t.child_runs_of(run, scope.address))
        is_made = str(AttemptKey(run, scope.address, scope.step or "", 1, JOIN)) in self._t.attempts
        return not (is_made or waits or self._has_open_child(run, scope.address))

    def _quiet_since(self, run: str, scope: StoredScope) -> float:
        closed = [child.closed_at or 0.0 for child in self._t.children.get((run, scope.address), ())]
        ended = [child.ended_at or 0.0 for child in self._t.child_runs_of(run, scope.address)]
        return max(closed or ended, default=scope.opened_at)

    def take(self, run: str, fan_out: str, lane: int, *, after_s: float = grace_s(1)) -> str | None:
        """Pass the lane to the next branch that is held; return its first attempt's key. In an aborted fan-out none gets it."""
        for scope in () if self._t.scopes[run, fan_out].aborted else self._t.children_of(run, fan_out):
            held = next((row for row in self._t.rows_at[run, scope.address] if row.is_held), None)
            if scope.is_open and held is not None:
                held.available_at = self._t.clock() + after_s
                scope.lanes[fan_out] = lane
                return str(held.key)
        return None

    def after_in_lane(self, run: str, branch: StoredScope) -> str | None:
        """Return the first attempt of the branch that got this one's lane."""
        fan_out = branch.parent or ""
        lane = branch.lanes.get(fan_out)
        for scope in self._t.children_of(run, fan_out):
            if scope.place > branch.place and lane is not None and scope.lanes.get(fan_out) == lane:
                return str(self._t.rows_at[run, scope.address][0].key)
        return None


def _is_beneath(address: str, above: str) -> bool:
    return address.startswith((f"{above}/", f"{above}#"))
