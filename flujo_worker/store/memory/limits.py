"""Concurrency limits, circuit breakers and rate limits in memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import inf

from flujo_client.contract.limits import GuardRow
from flujo_worker.domain.permit import ASK_AGAIN_S, PATIENCE_S, PermitRequest
from flujo_worker.ports import ClaimId
from flujo_worker.store.memory.attempts import AttemptsInMemory
from flujo_worker.store.memory.rows import StoredPermit
from flujo_worker.store.memory.tables import InMemory, Tables


class LimitsInMemory(InMemory):
    def __init__(self, tables: Tables, attempts: AttemptsInMemory) -> None:
        super().__init__(tables)
        self._attempts = attempts

    def request_permit(self, request: PermitRequest) -> bool:
        self._t.limits[request.name] = request.at_once
        known, in_use = self._t.permits.get(request.key), self._in_use(request.name, request.key)
        is_known = known is not None and known.name == request.name
        ahead = 0 if is_known else len(self._line(request.name))
        is_granted = in_use + ahead < request.at_once
        if not is_granted and request.on_full == "drop":
            return False
        permit = self._t.permits[request.key] = known if known and is_known else self._new_permit(request.name)
        permit.offered_at = -inf
        permit.fence = request.fence if is_granted else None
        if not is_granted:
            claim = ClaimId(request.key, request.fence, request.claim_id)
            self._attempts.defer(claim, ASK_AGAIN_S, request.waiting(in_use), waits_for=request.waits_for)
            if request.on_full == "cancel_oldest":
                self._cancel_oldest(request, permit.turn)
        return is_granted

    def release_permit(self, key: str, fence: int, name: str) -> list[str]:
        if (permit := self._t.permits.get(key)) is not None and permit.fence == fence:
            del self._t.permits[key]
        return self._offer(name)

    def offer_permits(self) -> list[str]:
        return [key for name in list(self._t.limits) for key in self._offer(name)]

    def guard_rows(self) -> list[GuardRow]:
        return [self._t.guards[each] for each in sorted(self._t.guards)]

    def write_file_settings(self, rows: Sequence[GuardRow]) -> None:
        given = {(row.guard, row.model): row for row in rows}
        for place, row in list(self._t.guards.items()):
            self._t.guards[place] = replace(row, from_file=None)
            if row.edits is None and not row.cleared_at and place not in given:
                del self._t.guards[place]
        for place, row in given.items():
            known = self._t.guards.get(place, row)
            self._t.guards[place] = replace(known, from_file=row.from_file)

    def _cancel_oldest(self, request: PermitRequest, turn: int) -> None:
        rows = {key: row for key in self._t.permits if (row := self._t.attempts.get(key)) is not None and row.is_live}
        line = [(key, each) for key, each in self._t.permits.items() if key in rows and each.name == request.name]
        known = [(each.turn, rows[key].key.run) for key, each in line if each.turn <= turn]
        live = [(at, run) for at, run in sorted(known) if self._t.may_merge(self._t.runs[run])]
        others = [run for _, run in live if run != request.run]
        for run in dict.fromkeys(others[: max(len(live) - request.at_once, 0)]):
            self._t.replace(run, request.replacement, by=request.run)

    def without_place(self, keys: Collection[str]) -> set[str]:
        """Return which of these attempts have a permit whose place others have taken."""
        crowded: set[str] = set()
        permits = self._t.permits.items()
        mine = [(each.turn, key, each.name) for key, each in permits if key in keys and self._runs_under(key, each)]
        for name in {name for *_, name in mine}:
            others = [(key, each) for key, each in permits if each.name == name and key not in keys]
            room = self._t.limits[name] - sum(self._uses_permit(*each) for each in others)
            crowded |= {key for _, key, _ in sorted(each for each in mine if each[2] == name)[max(room, 0) :]}
        return crowded

    def _new_permit(self, name: str) -> StoredPermit:
        self._t.last_turn += 1
        return StoredPermit(name, self._t.last_turn)

    def _in_use(self, name: str, besides: str = "") -> int:
        """Count the permits that are in use, without that of one attempt."""
        permits = [(key, each) for key, each in self._t.permits.items() if each.name == name and key != besides]
        return sum(self._uses_permit(key, each) for key, each in permits)

    def _uses_permit(self, key: str, permit: StoredPermit) -> bool:
        return self._runs_under(key, permit) and self._t.is_leased(self._t.attempts[key].worker)

    def _runs_under(self, key: str, permit: StoredPermit) -> bool:
        row = self._t.attempts.get(key)
        return row is not None and (row.status, row.fence) == ("running", permit.fence)

    def _line(self, name: str) -> list[str]:
        """Return the attempts that wait at a limit, in the order of their turns."""
        permits = self._t.permits.items()
        waiting = [(each.turn, key) for key, each in permits if each.name == name and self._may_ask(key, each)]
        return [key for _, key in sorted(waiting)]

    def _may_ask(self, key: str, permit: StoredPermit) -> bool:
        row = self._t.attempts.get(key)
        if row is None or permit.fence is not None:
            return False
        return row.status in ("ready", "queued") and self._t.may_run(self._t.runs[row.key.run])

    def _offer(self, name: str) -> list[str]:
        since = self._t.clock() - PATIENCE_S
        offered = sum(each.name == name and each.offered_at > since for each in self._t.permits.values())
        places = max(0, self._t.limits.get(name, 0) - self._in_use(name) - offered)
        chosen = [key for key in self._line(name) if self._t.permits[key].offered_at <= since][:places]
        for key in chosen:
            self._t.last_turn += 1
            self._t.permits[key].turn, self._t.permits[key].offered_at = self._t.last_turn, self._t.clock()
        return chosen
