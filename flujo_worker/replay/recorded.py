"""Replace the outside world while a run is decided again: its answers, and its rows in memory.

No value is read: decisions only pass values on, so a digest of each is enough.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Mapping, Sequence
from typing import Any

from flujo_client.contract.envelope import RunHeader
from flujo_client.contract.outcome import Event, Fault
from flujo_client.contract.records import RunRecord
from flujo_client.serial import Packed
from flujo_worker.domain.values import Cached, CacheEntry, CallUserCode, ChildRun, UserCodeFailed, UserCodePaused
from flujo_worker.ports import Replies
from flujo_worker.store.memory.rows import StoredAttempt
from flujo_worker.store.memory.stores import MemoryStores
from flujo_worker.store.memory.tables import Tables

ASKED_OF_CHANGES, ASKED_OF_THE_CACHE = "patch", "cached"


class ReplayMismatch(Exception):
    """A decision differs from the recorded one. `key`: its work row, if it is not the present one."""

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


def token(what: str) -> Packed:
    """Make a placeholder for a value that is never read."""
    return _value(hashlib.sha256(what.encode()).hexdigest())


class Answers:
    """Answers what is asked while one notice is decided, as it was answered then."""

    def __init__(self) -> None:
        self._left: list[Mapping[str, Any]] = []

    def begin(self, recorded: Sequence[Mapping[str, Any]]) -> None:
        """Take the answers of the next notice. Raises ReplayMismatch: the one before was asked for more, then, than it is now."""
        if self._left:
            raise ReplayMismatch(f"{_call_text(self._left[0])} is no longer asked")
        self._left = list(recorded)

    def answer(self, ticket: RunHeader, call: CallUserCode, replies: Replies = tuple) -> Any:  # noqa: ARG002 - the evaluator's signature
        """Return the recorded answer, or raise as user code did. Raises ReplayMismatch: something else was asked then, or nothing more."""
        meant = {"role": call.role, "path": call.path}
        if not self._left or any(self._left[0][key] != value for key, value in meant.items()):
            if call.role == ASKED_OF_CHANGES:  # only asked about a changed context, and contexts are not stored
                return None
            then = _call_text(self._left[0]) if self._left else "no further call"
            raise ReplayMismatch(f"{_call_text(meant)} is asked, but {then} was recorded")
        recorded = self._left.pop(0)
        if "paused" in recorded:
            raise UserCodePaused(recorded["paused"], Fault.from_tree(recorded["refused"]), call)
        if "refused" in recorded:
            raise UserCodeFailed(Fault.from_tree(recorded["refused"]))
        read = _read(recorded["answer"])
        return Cached(*read) if call.role == ASKED_OF_THE_CACHE else read

    def store_result(self, ticket: RunHeader, entry: CacheEntry) -> Event | None:  # noqa: ARG002 - the evaluator's signature
        """Store nothing."""
        if entry.output is None:
            return None
        return Event("flujo.cache.not_stored", {"step": entry.path, "reason": "replay"})


class RecordedTables(Tables):
    """Rows in memory that begin empty; child runs end at once, as they ended then."""

    def __init__(self, children: Mapping[str, RunRecord]) -> None:
        super().__init__(lambda: 0.0)
        self._recorded = children
        self.unclaimed: list[StoredAttempt] = []

    def add_attempt(self, row: StoredAttempt) -> None:
        super().add_attempt(row)
        self.unclaimed.append(row)

    def begin_child(self, parent: str, begun: ChildRun, now: float) -> None:
        super().begin_child(parent, begun, now)
        then, row = self._recorded.get(begun.run), self.runs[begun.run]
        if then is None:
            raise ReplayMismatch(f"the child run {begun.run} is started, but was not recorded")
        if not then.is_live:
            row.status, row.reason, row.fault, row.ended_at = then.status, then.reason, then.error, now


class RecordedStores(MemoryStores):
    """The stores on the rows of a replay."""

    def __init__(self, children: Mapping[str, RunRecord]) -> None:
        self._rows = RecordedTables(children)
        super().__init__(self._rows)

    def row(self, key: str) -> StoredAttempt | None:
        return self._rows.attempts.get(key)

    def claim_all(self, keys: Container[str], worker: str) -> list[str]:
        """Claim those of the rows as soon as they can be, and return the keys, also of rows that have ended when they were made."""
        rows, self._rows.unclaimed = self._rows.unclaimed, [row for row in self._rows.unclaimed if row.is_held]
        wanted = [row for row in rows if str(row.key) in keys and not row.is_held and row.status != "cancelled"]
        for row in wanted:
            if row.status == "paused":
                row.move("ready")
                row.available_at = 0.0
            if row.status == "ready":
                self.attempts.claim(str(row.key), worker, max_lost=1)
        return [str(row.key) for row in wanted]

    def begin_at(self, run: str, place: int) -> None:
        """Let a retry begin at a later step than the first."""
        self._rows.scopes[run, self._rows.runs[run].ticket.root].cursor = place


def _call_text(recorded: Mapping[str, Any]) -> str:
    return f"{recorded['role']} of '{recorded['path']}'"


def _read(answer: Any) -> Any:
    if isinstance(answer, dict) and answer.keys() == {"digest"}:
        return _value(answer["digest"])
    if isinstance(answer, dict) and answer.keys() == {"values"}:
        return [token(str(number)) for number in range(answer["values"])]
    return [_read(each) for each in answer] if isinstance(answer, list) else answer


def _value(digest: str) -> Packed:
    return Packed.from_bytes(f"#{digest}".encode())
