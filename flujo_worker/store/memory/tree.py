"""Operations of fan-outs and decisions on the store in memory: scopes, join signals, lanes, and winding down aborted work."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from flujo_client.address import AttemptKey
from flujo_client.contract.envelope import Envelope
from flujo_worker.domain.values import ChildRunRow, ScopeRow
from flujo_worker.ports import FanOutPlace
from flujo_worker.store.memory.rows import StoredAttempt, StoredRun, StoredScope
from flujo_worker.store.memory.tables import Tables
from flujo_worker.store.shared_rules import grace_s

JOIN: Final = "join"


class TreeInMemory(Tables):
    """The port `Tree`, and what the sweeper asks of it."""

    def scope(self, run: str, address: str) -> ScopeRow | None:
        with self._lock:
            scope = self._scopes.get((run, address))
            return None if scope is None else scope.row()

    def children(self, run: str, address: str) -> list[ScopeRow]:
        with self._lock:
            return [scope.row(context=False) for scope in self._children_of(run, address)]

    def envelopes(self, keys: Collection[str]) -> list[Envelope]:
        with self._lock:
            return [self._envelope(self._attempts[key]) for key in keys if key in self._attempts]

    def signal_join(self, run: str, address: str, queue: str, by: str) -> bool:
        with self._lock:
            scope = self._scopes.get((run, address))
            if scope is None or scope.step is None:
                return False
            key, now = AttemptKey(run, address, scope.step, 1, JOIN), self._clock()
            if str(key) not in self._attempts and self._is_joinable(run, scope):
                self._add_attempt(StoredAttempt(key, JOIN, queue, now + grace_s(1), now))
                self._add_event(run, str(key), "join.rung", "info", {"by": by})
            return str(key) in self._attempts and self._attempts[str(key)].is_live

    def child_run(self, run: str) -> ChildRunRow | None:
        with self._lock:
            row = self._runs.get(run)
            return None if row is None else row.child_row(self._scopes[run, row.ticket.root].context)

    def aborted_among(self, fan_outs: Collection[FanOutPlace]) -> set[FanOutPlace]:
        with self._lock:
            return {each for each in fan_outs if each in self._scopes and self._scopes[each].aborted}

    def wind_down_branches(self, run: str, fan_out: str) -> None:
        with self._lock:
            fan_out_scope = self._scopes.get((run, fan_out))
            if fan_out_scope is None or not fan_out_scope.aborted:
                return
            now = self._clock()
            for row in self._attempts_of(run):
                if row.status in ("ready", "queued", "paused") and _is_beneath(row.key.address, fan_out):
                    row.cancel("aborted", now)
            busy = [row.key.address for row in self._attempts_of(run) if row.is_live]
            for scope in self._scopes_of(run):
                is_busy = any(each == scope.address or _is_beneath(each, scope.address) for each in busy)
                if scope.is_open and _is_beneath(scope.address, fan_out) and not is_busy:
                    scope.wind_down("abort", now)

    def is_last_of_lane(self, run: str, branch: str, key: str) -> bool:
        with self._lock:
            scope = self._scopes.get((run, branch))
            return scope is not None and scope.closed_by == key and self._after_in_lane(run, scope) is None

    def missed_joins(self, limit: int, older_s: float) -> list[tuple[str, str]]:
        with self._lock:
            return [
                (run, scope.address)
                for run, scope in self._waiting()
                if self._is_joinable(run, scope)
                and str(AttemptKey(run, scope.address, scope.step or "", 1, JOIN)) not in self._attempts
                and self._quiet_since(run, scope) < self._clock() - older_s
            ][:limit]

    def aborted(self, limit: int) -> list[tuple[str, str]]:
        with self._lock:
            return [
                (run, scope.address)
                for run, scope in self._waiting()
                if scope.aborted and self._may_merge(self._runs[run]) and self._has_open_child(run, scope.address)
            ][:limit]

    def orphaned_children(self, limit: int) -> list[str]:
        with self._lock:
            return [run.ticket.run for run in self._runs.values() if run.is_live and self._is_orphan(run)][:limit]

    def stranded(self, limit: int) -> list[str]:
        with self._lock:
            return [run for run, row in self._runs.items() if self._may_merge(row) and self._is_stranded(run)][:limit]

    def _is_stranded(self, run: str) -> bool:
        if any(row.is_live and not row.is_held for row in self._attempts_of(run)):
            return False
        return not any(
            scope.aborted
            or any(each.is_live for each in self._child_runs_of(run, scope.address))
            or (
                self._is_joinable(run, scope)
                and str(AttemptKey(run, scope.address, scope.step or "", 1, JOIN)) not in self._attempts
            )
            for owner, scope in self._waiting()
            if owner == run
        )

    def _is_orphan(self, run: StoredRun) -> bool:
        parent, at = run.parent or (None, None)
        if parent is None or at is None:
            return False
        return not self._scopes[parent, at].is_open or self._runs[parent].stopped_at is not None

    def _waiting(self) -> Iterator[tuple[str, StoredScope]]:
        return ((run, scope) for (run, _), scope in self._scopes.items() if scope.waiting and scope.is_open)

    def _has_open_child(self, run: str, address: str) -> bool:
        return any(child.is_open for child in self._children.get((run, address), ()))

    def _is_joinable(self, run: str, scope: StoredScope) -> bool:
        is_ready = scope.waiting and scope.is_open and self._may_merge(self._runs[run])
        waits = self._has_open_child(run, scope.address) or any(
            each.is_live for each in self._child_runs_of(run, scope.address)
        )
        return is_ready and not waits

    def _quiet_since(self, run: str, scope: StoredScope) -> float:
        closed = [child.closed_at or 0.0 for child in self._children.get((run, scope.address), ())]
        ended = [child.ended_at or 0.0 for child in self._child_runs_of(run, scope.address)]
        return max(closed or ended, default=scope.opened_at)

    def _take(self, run: str, fan_out: str, lane: int) -> str | None:
        """Pass the lane to the next branch that is held; return its first attempt's key."""
        for scope in self._children_of(run, fan_out):
            held = next((row for row in self._rows_at[run, scope.address] if row.is_held), None)
            if scope.is_open and held is not None:
                held.available_at = self._clock() + grace_s(1)
                scope.lanes[fan_out] = lane
                return str(held.key)
        return None

    def _after_in_lane(self, run: str, branch: StoredScope) -> str | None:
        """Return the first attempt of the branch that got this one's lane."""
        fan_out = branch.parent or ""
        lane = branch.lanes.get(fan_out)
        for scope in self._children_of(run, fan_out):
            if scope.place > branch.place and lane is not None and scope.lanes.get(fan_out) == lane:
                return str(self._rows_at[run, scope.address][0].key)
        return None


def _is_beneath(address: str, above: str) -> bool:
    return address.startswith((f"{above}/", f"{above}#"))
