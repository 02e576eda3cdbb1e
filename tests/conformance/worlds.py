"""The worlds a store can live in: memory, and a real Postgres. Each can record a run, read it back, and let time pass."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

import psycopg
from psycopg.rows import dict_row

from flujo_client.address import new_run_id
from flujo_client.contract.approval import Approval
from flujo_client.contract.envelope import CONTROL_QUEUE, Envelope
from flujo_client.contract.event import EventState
from flujo_client.contract.outcome import Outcome
from flujo_client.contract.records import (
    AttemptRecord,
    AttemptValues,
    CorrectionRecord,
    EventRecord,
    NewRun,
    NoticeRecord,
    Recording,
    RunRecord,
    RunSummary,
    ScopeRecord,
)
from flujo_client.gateway import operator_requests, plan_requests, requests
from flujo_client.gateway.admission import AlreadyUnderWay, through_gates
from flujo_client.gateway.door import _answer
from flujo_client.gateway.effects import Query
from flujo_client.gateway.requests import Request
from flujo_client.pipeline.fork import Beginning, NewFork, RetryableRun, begun_place, new_fork, place_of
from flujo_client.pipeline.submit import Order
from flujo_client.serial import Packed
from flujo_worker.domain.budget import Budget
from flujo_worker.domain.values import Decision, ScopeRow
from flujo_worker.ports import BrokerSnapshot, Due, PoisonedAttempt, Room, Stores, Verdict
from flujo_worker.store.memory.tables import Tables
from flujo_worker.store.postgres.budgets import budget_of
from flujo_worker.store.postgres.statements import HOME, statement
from flujo_worker.store.postgres.stores import PostgresStores
from tests.support.builders import decided, member
from tests.support.memory import AllInMemory, asked

ROUNDS = int(os.environ.get("FLUJO_RACE_ROUNDS", "6"))
"""How often a race is run. The fixture `race` lets each act lead once, which takes as many rounds as there are acts; then it draws. `make races` looks for what is rare."""
MAX_LOST = 2
LEASE_S = 30.0
_TABLES = "permits limits runs scopes attempts deleted_runs contexts budgets reservations spends units batches batch_requests workers events inputs blobs code context_fields gates gate_places waiting_runs broker_epochs hook_calls pipelines model_guards schedules"
_EMPTY = "".join(f"DELETE FROM flujo_{table};" for table in _TABLES.split()) + (
    "UPDATE flujo_sweeps SET swept_at = '-infinity', pruned_at = '-infinity', marking_since = '-infinity', marked_to = NULL, swept_to = NULL;"
    "UPDATE flujo_exports SET worker = NULL, looked_at = NULL, positions = '{}', refused = 0, lost = 0"
)
_AGES = {
    "workers": "lease_until",
    "permits": "offered_at",
    "attempts": "created_at available_at sent_at started_at waits_since ended_at",
    "scopes": "opened_at closed_at",
    "runs": "deadline_at started_at ended_at",
    "sweeps": "swept_at live_since looked_at pruned_at marking_since tallied_to",
    "broker_epochs": "started_at",
    "blobs": "touched_at",
    "batches": "began_at due_at",
    "batch_requests": "asked_at live_at",
    "gates": "touched_at",
    "gate_places": "until",
    "waiting_runs": "not_before",
    "deleted_runs": "ended_at",
    "model_guards": "cleared_at",
}


class Setting(Protocol):
    """What differs between the worlds."""

    stores: Stores

    def now(self) -> float: ...
    def record(self, new: NewRun) -> None: ...
    def request_cancel(self, run: str, reason: str | None = None) -> bool: ...
    def pass_time(self, seconds: float) -> None: ...
    def forget_claim(self, key: str) -> None: ...
    def read_run(self, run: str) -> RunRecord: ...
    def read_attempts(self, run: str) -> Sequence[AttemptRecord]: ...
    def read_attempt_values(self, key: str) -> AttemptValues: ...
    def read_scopes(self, run: str) -> Sequence[ScopeRecord]: ...
    def read_events(self, run: str) -> Sequence[EventRecord]: ...
    def read_system_events(self) -> Sequence[EventRecord]: ...
    def read_recording(self, run: str) -> Recording: ...
    def read_notices(self, run: str) -> Sequence[NoticeRecord]: ...
    def read_corrections(self, run: str) -> Sequence[CorrectionRecord]: ...
    def read_questions(self, run: str) -> Sequence[Approval]: ...
    def answer(self, key: str, value: Packed, *, actor: str | None = None, note: str | None = None) -> bool: ...
    def send(self, run: str, name: str, event_id: str, value: Packed) -> bool: ...
    def event_state(self, run: str, name: str, event_id: str) -> EventState: ...
    def read_budgets(self) -> Mapping[str, Budget]: ...
    def read_deleted_runs(self) -> Sequence[RunSummary]: ...
    def read_models(self) -> list[str | None]: ...
    def retryable_run(self, run_id: str) -> RetryableRun: ...
    def beginning(self, run_id: str, place: int, before: Sequence[str]) -> Beginning | None: ...
    def fork(self, new: NewFork) -> str | None: ...
    def edit_guard(self, *given: Any, **options: Any) -> int: ...


class Memory:
    """In memory; its clock is ours."""

    def __init__(self) -> None:
        self._now = 1_800_000_000.0
        self.stores = AllInMemory(Tables(self.now))
        client, reads, more = self.stores.client, self.stores.reads, asked(self.stores)
        self.record, self.request_cancel, self.answer = client.record, more.request_cancel, client.answer
        self.retryable_run, self.beginning, self.fork = client.retryable_run, client.beginning, client.fork
        self.edit_guard, self.send, self.event_state = more.edit_guard, client.send, client.event_state
        self.read_run, self.read_attempts, self.read_scopes = reads.read_run, reads.read_attempts, reads.read_scopes
        self.read_attempt_values = more.read_attempt_values
        self.read_events, self.read_system_events = reads.read_events, more.read_system_events
        self.read_recording, self.read_notices = more.read_recording, more.read_notices
        self.read_corrections, self.read_questions = more.read_corrections, reads.read_questions
        self.read_budgets, self.read_deleted_runs = more.read_budgets, self.stores.retention.read_deleted_runs

    def now(self) -> float:
        return self._now

    def pass_time(self, seconds: float) -> None:
        self._now += seconds

    def read_models(self) -> list[str | None]:
        return [usage.model for usage in self.stores.tables.spends.values()]

    def forget_claim(self, key: str) -> None:
        """Lose a claim, and the budgets that it opened, as a failover to a lagging replica does. Memory has no such replica."""
        row = self.stores.tables.attempts[key]
        row.status, row.fence, row.worker, row.started_at = "queued", row.fence - 1, None, None
        for scope in self.stores.tables.reservations.pop(key, {}):
            del self.stores.tables.budgets[scope]


class Postgres:
    """A real one. Its clock cannot be moved, so time passes by making everything older."""

    def __init__(self, stores: PostgresStores, url: str) -> None:
        self.stores, self.url = stores, url
        self._connection = psycopg.connect(url, autocommit=True, row_factory=dict_row)

    def empty(self) -> None:
        """Forget everything."""
        self._connection.execute(_EMPTY)

    def close(self) -> None:
        self._connection.close()

    def now(self) -> float:
        return float(self.rows("SELECT extract(epoch FROM clock_timestamp())::float8 AS now")[0]["now"])

    def record(self, new: NewRun) -> None:
        if not new.gates:
            self.ask(requests.record(new))
            return
        recording = requests.record(new)
        with suppress(AlreadyUnderWay):
            self.ask(through_gates(recording, [new], lambda _, entered: entered, judges=True))

    def request_cancel(self, run: str, reason: str | None = None) -> bool:
        return bool(self.ask(requests.cancel(run, actor=None, reason=reason)))

    def pass_time(self, seconds: float) -> None:
        for table, columns in _AGES.items():
            older = ", ".join(f"{column} = {column} - make_interval(secs => %(s)s)" for column in columns.split())
            self._connection.execute(f"UPDATE flujo_{table} SET {older}", {"s": seconds})

    def forget_claim(self, key: str) -> None:
        """Lose a claim, and the budgets that it opened, as a failover to a lagging replica does."""
        before = "status = 'queued', fence = fence - 1, worker = NULL, started_at = NULL"
        self._connection.execute(f"UPDATE flujo_attempts SET {before} WHERE key = %s", [key])
        reserved = "WITH gone AS (DELETE FROM flujo_reservations WHERE key = %s RETURNING scope)"
        self._connection.execute(f"{reserved} DELETE FROM flujo_budgets WHERE scope IN (SELECT scope FROM gone)", [key])

    def read_run(self, run: str) -> RunRecord:
        found: RunRecord = self.ask(requests.run(run))
        return found

    def read_attempts(self, run: str) -> Sequence[AttemptRecord]:
        return list(self.ask(requests.attempts(run)))

    def read_attempt_values(self, key: str) -> AttemptValues:
        found: AttemptValues = self.ask(requests.attempt_values(key))
        return found

    def read_scopes(self, run: str) -> Sequence[ScopeRecord]:
        return list(self.ask(requests.scopes(run)))

    def read_events(self, run: str) -> Sequence[EventRecord]:
        return [event for event in self.ask(requests.events(run, settled=False)) if event.name != "run.enqueued"]

    def read_system_events(self) -> Sequence[EventRecord]:
        return list(reversed(self.ask(requests.system_events(since_s=1e9, limit=1000))))

    def read_recording(self, run: str) -> Recording:
        found: Recording = self.ask(requests.recording(run))
        return found

    def read_notices(self, run: str) -> Sequence[NoticeRecord]:
        return list(self.ask(requests.notices(run)))

    def read_corrections(self, run: str) -> Sequence[CorrectionRecord]:
        return list(self.ask(requests.corrections(run)))

    def read_questions(self, run: str) -> Sequence[Approval]:
        return list(self.ask(requests.questions(run)))

    def answer(self, key: str, value: Packed, *, actor: str | None = None, note: str | None = None) -> bool:
        return bool(self.ask(requests.answer(key, value, actor=actor, note=note)))

    def send(self, run: str, name: str, event_id: str, value: Packed) -> bool:
        return bool(self.ask(requests.send(run, name, event_id, value, actor=None)))

    def event_state(self, run: str, name: str, event_id: str) -> EventState:
        return self.ask(requests.event_state(run, name, event_id))

    def read_models(self) -> list[str | None]:
        return [row["model"] for row in self.rows("SELECT model FROM flujo_spends ORDER BY at")]

    def read_deleted_runs(self) -> Sequence[RunSummary]:
        return self.ask(requests.deleted_runs())

    def read_budgets(self) -> Mapping[str, Budget]:
        rows = self.rows("SELECT * FROM flujo_budgets ORDER BY scope")
        return {row["scope"]: budget_of(row) for row in rows}

    def retryable_run(self, run_id: str) -> RetryableRun:
        found: RetryableRun = self.ask(plan_requests.retryable_run(run_id))
        return found

    def beginning(self, run_id: str, place: int, before: Sequence[str]) -> Beginning | None:
        found: Beginning | None = self.ask(plan_requests.beginning(run_id, place, before))
        return found

    def fork(self, new: NewFork) -> str | None:
        if not new.gates:
            forked: str | None = self.ask(plan_requests.fork(new))
            return forked
        recording = plan_requests.fork(new)
        entered = self.ask(through_gates(recording, [new], lambda _, entered: entered, judges=True))
        return next(iter(entered), None)

    def edit_guard(self, *given: Any, **options: Any) -> int:
        return self.ask(operator_requests.edit_guard(*given, **options))

    def rows(self, sql: str, **parameters: Any) -> list[dict[str, Any]]:
        return self._connection.execute(sql, parameters).fetchall()

    def execute(self, sql: str) -> None:
        self._connection.execute(sql)

    def ask(self, request: Request[Any]) -> Any:
        return _answer(self._connection, Query(request))


class World:
    """A store with what a test says of it. `w1` is alive unless the test ends it."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.stores = setting, setting.stores
        self.now, self.pass_time, self.request_cancel = setting.now, setting.pass_time, setting.request_cancel
        self.run, self.attempts, self.events = setting.read_run, setting.read_attempts, setting.read_events
        self.system_events = setting.read_system_events
        self.recording, self.notices = setting.read_recording, setting.read_notices
        self.scopes, self.corrections = setting.read_scopes, setting.read_corrections
        self.values, self.models = setting.read_attempt_values, setting.read_models
        self.questions, self.answer = setting.read_questions, setting.answer
        self.send, self.event_state = setting.send, setting.event_state
        self.read_deleted_runs = setting.read_deleted_runs
        self.budgets, self.forget_claim = setting.read_budgets, setting.forget_claim
        self.retryable_run, self.beginning = setting.retryable_run, setting.beginning
        self.edit_guard = setting.edit_guard
        self.register_worker("w1")

    def register_worker(self, *names: str, lease_s: float = LEASE_S) -> None:
        """Begin these incarnations."""
        for name in names:
            self.stores.leases.register_worker(member(name), lease_s)

    def record(self, new: NewRun) -> NewRun:
        """Record a run."""
        self.setting.record(new)
        return new

    def forked(self, run: str, step: str, **order: Any) -> NewFork:
        """What a retry would record; with `onto`, a fork that begins under that plan."""
        retryable_run, onto = self.retryable_run(run), order.pop("onto", None)
        place = place_of(retryable_run, step) if onto is None else begun_place(retryable_run, step)
        beginning = self.beginning(run, place, retryable_run.names[:place])
        assert beginning is not None, "its beginning is kept"
        order = {"tenant": retryable_run.ticket.tenant, **order}
        asked = Order(order.pop("run_id", None) or new_run_id(1_700_000_000.0), **order)
        return new_fork(retryable_run, place, beginning, asked, inline=65_536, control_queue=CONTROL_QUEUE, onto=onto)

    def fork(self, new: NewFork) -> str | None:
        """Record a fork."""
        return self.setting.fork(new)

    def claim(self, at: NewRun | Envelope, worker: str = "w1", *, room: Room = "shared") -> int:
        """Claim an attempt; give the fence."""
        claim = self.stores.attempts.claim(key_of(at), worker, max_lost=MAX_LOST, room=room)
        assert claim.fence is not None, claim.refusal
        return claim.fence

    def refusal(self, at: NewRun | Envelope | str, worker: str = "w1") -> str | None:
        """Claim an attempt; give why not."""
        return self.stores.attempts.claim(at if isinstance(at, str) else key_of(at), worker, max_lost=MAX_LOST).refusal

    def conclude(self, new: NewRun, outcome: Outcome, *, fence: int = 1, at: Envelope | None = None) -> Verdict:
        """Commit what follows from an outcome."""
        return self.commit(decided(new, outcome, fence=fence, at=at))

    def commit(self, decision: Decision) -> Verdict:
        """Commit a decision; give the verdict alone."""
        return self.stores.attempts.commit(decision).verdict

    def due(self, *, epoch: float = 0.0, heads: Any = None, may_judge: bool = True, limit: int = 100) -> list[Due]:
        """Ask what is to be published again."""
        judge = self.judge() if may_judge else None
        return self.stores.backlog.due(BrokerSnapshot(epoch, heads or {}), judge=judge, max_lost=MAX_LOST, limit=limit)

    def poisoned(self, limit: int = 9) -> list[PoisonedAttempt]:
        """Take what was lost alone too often."""
        return self.stores.backlog.poisoned(judge=self.judge(), max_lost=MAX_LOST, limit=limit)

    def judge(self) -> str:
        """Give a worker that may call others dead."""
        self.register_worker("judge", lease_s=1e6)
        return "judge"

    def status(self, at: NewRun | Envelope) -> str:
        """Give an attempt's status."""
        return next(each.status for each in self.attempts(run_of(at)) if each.key == key_of(at))

    def picture(self, run: str) -> tuple[Any, ...]:
        """All of a run but what was spent and told."""
        attempts = tuple(replace(each, tokens=0, cost_usd=0.0) for each in self.attempts(run))
        return replace(self.run(run), tokens=0, cost_usd=0.0), attempts, tuple(self.tree(run))

    def scope(self, run: str, address: str = "") -> ScopeRow:
        """A scope that is there."""
        row = self.stores.scopes.scope(run, address)
        assert row is not None, address
        return row

    def tree(self, run: str, address: str = "") -> list[ScopeRow]:
        """A scope with all beneath it."""
        below = [row for child in self.stores.scopes.children(run, address) for row in self.tree(run, child.address)]
        return [self.scope(run, address), *below]


def key_of(at: NewRun | Envelope) -> str:
    return at.first.key if hasattr(at, "first") else at.key


def run_of(at: NewRun | Envelope) -> str:
    return at.first.ticket.run if hasattr(at, "first") else at.ticket.run


def deadlocks(postgres: Postgres, name: str | None = None) -> int:
    """How many deadlocks Postgres has counted in a database, its own unless named."""
    postgres.rows("SELECT pg_stat_clear_snapshot()")
    counted = "SELECT deadlocks FROM pg_stat_database WHERE datname = coalesce(%(name)s, current_database())"
    return int(postgres.rows(counted, name=name)[0]["deadlocks"])


def say(connection: psycopg.Connection[Any], name: str, parameters: Mapping[str, Any], *, home: str = HOME) -> None:
    """Execute one of the store's statements on a connection of one's own, to hold its locks."""
    text, names = statement(name, home)
    psycopg.RawCursor(connection).execute(text, [parameters[each] for each in names])


def waits(url: str, act: Callable[[], Any]) -> Future[Any]:
    """Start an act that must wait for a lock; give it when it does."""
    threads = ThreadPoolExecutor(1)
    waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    deadline = time.monotonic() + 60
    with psycopg.connect(url, autocommit=True) as onlooker:
        started = threads.submit(act)  # not before: its wait for the lock has a bound
        threads.shutdown(wait=False)
        while not (started.done() or onlooker.execute(waiting).fetchone()) and time.monotonic() < deadline:
            time.sleep(0.005)
    assert not started.done()
    return started
