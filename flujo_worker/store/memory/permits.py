"""The permits of concurrency limits in memory."""

from __future__ import annotations

from collections.abc import Collection
from math import inf

from flujo_worker.domain.permit import ASK_AGAIN_S, PATIENCE_S, PermitRequest
from flujo_worker.store.memory.ledger import LedgerInMemory
from flujo_worker.store.memory.rows import StoredPermit


class PermitsInMemory(LedgerInMemory):
    """The port `Permits`."""

    def request_permit(self, request: PermitRequest) -> bool:
        with self._lock:
            self._limits[request.name] = request.at_once
            known, in_use = self._permits.get(request.key), self._in_use(request.name, request.key)
            is_known = known is not None and known.name == request.name
            ahead = 0 if is_known else len(self._line(request.name))
            is_granted = in_use + ahead < request.at_once
            if not is_granted and request.on_full == "drop":
                return False
            permit = self._permits[request.key] = known if known and is_known else self._new_permit(request.name)
            permit.offered_at = -inf
            permit.fence = request.fence if is_granted else None
            if not is_granted:
                self.defer(request.key, request.fence, ASK_AGAIN_S, request.waiting(in_use), claim_id=request.claim_id)
                if request.on_full == "cancel_oldest":
                    self._cancel_oldest(request, permit.turn)
            return is_granted

    def release_permit(self, key: str, fence: int, name: str) -> list[str]:
        with self._lock:
            if (permit := self._permits.get(key)) is not None and permit.fence == fence:
                del self._permits[key]
            return self._offer(name)

    def offer_permits(self) -> list[str]:
        with self._lock:
            return [key for name in list(self._limits) for key in self._offer(name)]

    def _cancel_oldest(self, request: PermitRequest, turn: int) -> None:
        rows = {key: row for key in self._permits if (row := self._attempts.get(key)) is not None and row.is_live}
        asked = [
            (permit.turn, rows[key].key.run)
            for key, permit in self._permits.items()
            if key in rows and permit.name == request.name and permit.turn <= turn
        ]
        asked = [(at, run) for at, run in sorted(asked) if self._may_merge(self._runs[run])]
        others = [run for _, run in asked if run != request.run]
        for run in dict.fromkeys(others[: max(len(asked) - request.at_once, 0)]):
            self._replace(run, request.replacement)

    def _without_place(self, keys: Collection[str]) -> set[str]:
        """Return which of these attempts have a permit whose place others have by now."""
        crowded: set[str] = set()
        mine = [
            (each.turn, key, each.name)
            for key, each in self._permits.items()
            if key in keys and self._runs_under(key, each)
        ]
        for name in {name for *_, name in mine}:
            others = [(key, each) for key, each in self._permits.items() if each.name == name and key not in keys]
            room = self._limits[name] - sum(self._uses_permit(*each) for each in others)
            crowded |= {key for _, key, _ in sorted(each for each in mine if each[2] == name)[max(room, 0) :]}
        return crowded

    def _new_permit(self, name: str) -> StoredPermit:
        self._last_turn += 1
        return StoredPermit(name, self._last_turn)

    def _in_use(self, name: str, besides: str = "") -> int:
        """Count the permits that are in use, without that of one attempt."""
        permits = [(key, each) for key, each in self._permits.items() if each.name == name and key != besides]
        return sum(self._uses_permit(key, each) for key, each in permits)

    def _uses_permit(self, key: str, permit: StoredPermit) -> bool:
        return self._runs_under(key, permit) and self._is_leased(self._attempts[key].worker)

    def _runs_under(self, key: str, permit: StoredPermit) -> bool:
        row = self._attempts.get(key)
        return row is not None and (row.status, row.fence) == ("running", permit.fence)

    def _line(self, name: str) -> list[str]:
        """Return who waits at a limit, in the order of their turns."""
        waiting = [
            (each.turn, key) for key, each in self._permits.items() if each.name == name and self._may_ask(key, each)
        ]
        return [key for _, key in sorted(waiting)]

    def _may_ask(self, key: str, permit: StoredPermit) -> bool:
        row = self._attempts.get(key)
        if row is None or permit.fence is not None:
            return False
        return row.status in ("ready", "queued") and self._may_run(self._runs[row.key.run])

    def _offer(self, name: str) -> list[str]:
        since = self._clock() - PATIENCE_S
        offered = sum(each.name == name and each.offered_at > since for each in self._permits.values())
        places = max(0, self._limits.get(name, 0) - self._in_use(name) - offered)
        chosen = [key for key in self._line(name) if self._permits[key].offered_at <= since][:places]
        for key in chosen:
            self._last_turn += 1
            self._permits[key].turn, self._permits[key].offered_at = self._last_turn, self._clock()
        return chosen
