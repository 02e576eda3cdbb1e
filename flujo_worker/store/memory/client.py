"""The operations of clients and operators in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from flujo_client.address import ROOT, AttemptKey
from flujo_client.contract.event import EventState
from flujo_client.contract.records import LIVE_RUN, NewRun
from flujo_client.pipeline.fork import Beginning, NewFork, RetryableRun
from flujo_client.serial import Packed
from flujo_client.sizes import MAX_EVENTS
from flujo_worker.ports import HumanAnswer
from flujo_worker.store.memory.admission import AdmissionInMemory
from flujo_worker.store.memory.rows import StoredAttempt, StoredEvent, StoredRun, StoredScope
from flujo_worker.store.memory.tables import InMemory, Tables
from flujo_worker.store.shared_rules import GRACE_S


class ClientInMemory(InMemory):
    def __init__(self, tables: Tables, admission: AdmissionInMemory) -> None:
        super().__init__(tables)
        self._admission = admission

    def record(self, new: NewRun) -> str:
        """Record a run, or find the one that was recorded under its id or its idempotency key, or that its singleton has under way.

        Raises:
            IdempotencyConflict: the id or the key is in use for other work.
            AdmissionRefused: a gate without room refuses what comes beyond it.
        """
        ticket = new.first.ticket
        found = self._t.named(ticket, new.digest) or self._t.under(ticket.tenant, new.idempotency_key, new.digest)
        if found is None:
            found = self._admission.live_holder(new.gates)
        if found is not None:
            return found
        self._t.since.setdefault(new.plan.fingerprint, self._t.clock())
        self._t.contexts[ticket.run, 0] = new.first.context
        return self._begin(new, new.first.input, new.plan.name)

    def answer(self, key: str, value: Packed, *, actor: str | None = None, note: str | None = None) -> bool:
        """Answer a question; False when it is not open."""
        row, now = self._t.attempts.get(key), self._t.clock()
        if row is None or row.status != "paused" or row.available_at <= now:
            return False
        run = self._t.runs[row.key.run]
        if not self._t.may_merge(run) or self._t.is_over(run):
            return False
        row.move("ready")
        row.available_at, row.answer = now, HumanAnswer(value, actor, note, now)
        given = {"step": row.key.step, "actor": actor, "note": note}
        self._t.add_event(row.key.run, key, "run.answered", "info", given)
        return True

    def event_state(self, run_id: str, name: str, event_id: str) -> EventState:
        """Read what a run knows about an event, as `flujo_client.gateway.requests.event_state` does; raises RunNotFound."""
        run, sent = self._t.run(run_id), self._t.sent_events.get((run_id, name, event_id))
        is_live = self._t.may_merge(run) and not self._t.is_over(run)
        waiting = [row for row in self._t.family_of(run_id) if row.status == "paused" and row.event == name]
        schemas = [row.question["schema"] for row in waiting if row.question is not None]
        names = {node.rules["event"] for node in run.plan.nodes.walk() if "event" in node.rules}
        digest = sent.value.digest if sent else None
        buffered = sum(each.run == run_id and not each.is_over for each in self._t.sent_events.values())
        return EventState(run.status, is_live, names, schemas, digest, min(buffered, MAX_EVENTS))

    def send(self, run_id: str, name: str, event_id: str, value: Packed) -> bool:
        """Record an event; False if the run takes none, or the id is in use."""
        run, key = self._t.runs.get(run_id), (run_id, name, event_id)
        if run is None or not self._t.may_merge(run) or self._t.is_over(run) or key in self._t.sent_events:
            return False
        self._t.sent_events[key] = StoredEvent(*key, value, self._t.clock())
        self._t.add_event(run_id, None, "run.event_sent", "info", {"event": name, "id": event_id})
        return True

    def retryable_run(self, run_id: str) -> RetryableRun:
        """Read a run that may be retried; raises RunNotFound."""
        run, cursor = self._t.run(run_id), self._t.scopes[run_id, self._t.run(run_id).ticket.root].cursor
        deadline = run.ticket.deadline
        patience_s = None if deadline is None else deadline - run.created_at
        rest = (run.parent_run is not None, run.metadata, patience_s, run.gates, run.retried_as)
        return RetryableRun(run.ticket, run.plan, run.status, cursor, *rest)

    def beginning(self, run_id: str, place: int, before: Sequence[str]) -> Beginning | None:
        """Read the input and the context that the top-level step at a place began with; None if they were not stored."""
        for at in range(place, -1, -1):
            if (run_id, at) not in self._t.contexts:
                return None
            context = self._t.contexts[run_id, at]
            if context is not None or at == 0:
                return Beginning(self._given(run_id, before), context)
        return None

    def fork(self, new: NewFork) -> str | None:
        """Record a run that begins again at a step of another; None when that one is gone, live or retried before, or the key is taken.

        Raises IdempotencyConflict: the key is in use for other work.
        """
        ticket, old = new.first.ticket, self._t.runs.get(new.forked_from)
        found = self._t.under(ticket.tenant, new.idempotency_key, new.digest)
        if found is not None or old is None or (old.status in LIVE_RUN and not new.of_live):
            return found
        if old.retried_as is not None and not new.again:
            return None
        if old.status not in LIVE_RUN:
            old.retried_as = ticket.run
        step, origin = new.first.step, old.ticket.run
        self._take_over(new, ticket.run)
        self._begin(new, old.input, old.name, at=new.place, fork=(origin, step))
        self._t.add_event(ticket.run, None, "run.forked", "info", {"from_run": origin, "from_step": step})
        self._t.add_event(origin, None, "run.forked", "info", {"to_run": ticket.run, "from_step": step})
        return ticket.run

    def _begin(self, new: NewRun, given: Packed, name: str, *, at: int = 0, fork: tuple[str, str] | None = None) -> str:
        """Record a run with this input, its root scope and its first attempt, which waits at the gates."""
        first, now = new.first, self._t.clock()
        ticket, metadata = first.ticket, dict(new.metadata)
        run = StoredRun(ticket, new.plan, given, new.digest, metadata, now, new.idempotency_key, name, gates=new.gates)
        run.forked_from, run.from_step = fork or (None, None)
        attempt = StoredAttempt(AttemptKey.parse(first.key), first.kind, first.queue, now + GRACE_S, now)
        self._t.keep(new.blobs)
        self._t.record_plan(ticket.reference, new.plan)
        self._t.runs[ticket.run] = run
        self._t.add_scope(ticket.run, StoredScope(first.address, first.input, first.context, now, cursor=at))
        self._t.add_attempt(attempt)
        self._admission.enter(run, attempt)
        return ticket.run

    def _take_over(self, new: NewFork, run: str) -> None:
        taken = {"taken_over_from": new.forked_from}
        for row in [*self._t.attempts_of(new.forked_from)]:
            is_taken = (row.key.address, row.status) == (ROOT, "succeeded") and row.key.step in new.taken
            if is_taken and row.kind in ("step", "resume"):
                own: dict[str, Any] = {"key": row.key._replace(run=run), "metadata": taken | row.metadata}
                self._t.add_attempt(replace(row, **own, question=None, answer=None, worker=None, fence=0, sends=0))
        for scope in [*self._t.scopes_of(new.forked_from)]:
            if (scope.parent, scope.status) == (ROOT, "succeeded") and scope.step in new.taken:
                self._t.add_scope(run, replace(scope, metadata=taken | scope.metadata, closed_by=None, lanes={}))
        for place in range(new.keeps):
            if (new.forked_from, place) in self._t.contexts:
                self._t.contexts[run, place] = self._t.contexts[new.forked_from, place]
        self._t.contexts[run, new.place] = new.first.context

    def _given(self, run_id: str, before: Sequence[str]) -> Packed:
        """Return the last output of these steps; of a router its branches' output, not its agent's."""
        for name in reversed(before):
            scope = self._t.scopes.get((run_id, name))
            if scope is not None and scope.status == "succeeded":
                return scope.output
            rows = [row for row in self._t.attempts_of(run_id) if (row.key.address, row.key.step) == (ROOT, name)]
            outputs = [row.output for row in rows if row.status == "succeeded" and row.output is not None]
            if outputs:
                return outputs[-1]
        return self._t.run(run_id).input
