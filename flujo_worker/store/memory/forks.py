"""Retries in the store in memory: the beginning of a step, and the run that is forked from another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flujo_client.address import ROOT, AttemptKey
from flujo_client.contract.records import LIVE_RUN
from flujo_client.pipeline.fork import Beginning, NewFork, RetryableRun
from flujo_client.serial import Packed
from flujo_worker.store.memory.admission import AdmissionInMemory
from flujo_worker.store.memory.ledger import LedgerInMemory
from flujo_worker.store.memory.rows import StoredAttempt, StoredRun, StoredScope
from flujo_worker.store.shared_rules import GRACE_S


class ForksInMemory(LedgerInMemory, AdmissionInMemory):
    """A client's operations for retries."""

    def retryable_run(self, run_id: str) -> RetryableRun:
        """Read what there is of a run that may be retried; raises RunNotFound."""
        with self._lock:
            run, cursor = self._run(run_id), self._scopes[run_id, self._run(run_id).ticket.root].cursor
            deadline = run.ticket.deadline
            patience_s = None if deadline is None else deadline - run.created_at
            is_child = run.parent is not None
            rest = (run.metadata, patience_s, run.gates, run.retried_as)
            return RetryableRun(run.ticket, run.plan, run.status, cursor, is_child, *rest)

    def beginning(self, run_id: str, place: int, before: Sequence[str]) -> Beginning | None:
        """Read what the top-level step at a place began with; None if that was not stored."""
        with self._lock:
            for at in range(place, -1, -1):
                if (run_id, at) not in self._contexts:
                    return None
                context = self._contexts[run_id, at]
                if context is not None or at == 0:
                    return Beginning(self._given(run_id, before), context)
            return None

    def fork(self, new: NewFork) -> str | None:
        """Record a run that begins again at a step of another; None when that one is gone, live or retried before, or the key is taken.

        Raises:
            IdempotencyConflict: the key is in use for other work.
        """
        with self._lock:
            ticket, now, old = new.first.ticket, self._clock(), self._runs.get(new.forked_from)
            found = self._under(ticket.tenant, new.idempotency_key, new.digest)
            if found is not None or old is None or (old.status in LIVE_RUN and not new.of_live):
                return found
            if old.retried_as is not None and not new.again:
                return None
            if old.status not in LIVE_RUN:
                old.retried_as = ticket.run
            step, metadata = new.first.step, dict(new.metadata)
            self._keep(new.blobs)
            self._record_plan(ticket.reference, new.plan)
            self._runs[ticket.run] = StoredRun(
                ticket,
                new.plan,
                old.input,
                new.digest,
                metadata,
                now,
                new.idempotency_key,
                old.name,
                forked=(old.ticket.run, step),
                gates=new.gates,
            )
            self._add_scope(ticket.run, StoredScope(ROOT, new.first.input, new.first.context, now, cursor=new.place))
            self._take_over(new, ticket.run)
            key = AttemptKey.parse(new.first.key)
            first = StoredAttempt(key, new.first.kind, new.first.queue, now + GRACE_S, now)
            self._add_attempt(first)
            self._enter(self._runs[ticket.run], first)
            self._add_event(ticket.run, None, "run.forked", "info", {"from_run": old.ticket.run, "from_step": step})
            self._add_event(old.ticket.run, None, "run.forked", "info", {"to_run": ticket.run, "from_step": step})
            return ticket.run

    def _take_over(self, new: NewFork, run: str) -> None:
        taken = {"taken_over_from": new.forked_from}
        for row in [*self._attempts_of(new.forked_from)]:
            if (
                (row.key.address, row.status) == (ROOT, "succeeded")
                and row.kind in ("step", "resume")
                and row.key.step in new.taken
            ):
                key = row.key._replace(run=run)
                metadata = taken | row.metadata
                self._add_attempt(
                    replace(row, key=key, metadata=metadata, question=None, answer=None, worker=None, fence=0, sends=0)
                )
        for scope in [*self._scopes_of(new.forked_from)]:
            if (scope.parent, scope.status) == (ROOT, "succeeded") and scope.step in new.taken:
                self._add_scope(run, replace(scope, metadata=taken | scope.metadata, closed_by=None, lanes={}))
        for place in range(new.keeps):
            if (new.forked_from, place) in self._contexts:
                self._contexts[run, place] = self._contexts[new.forked_from, place]
        self._contexts[run, new.place] = new.first.context

    def _given(self, run_id: str, before: Sequence[str]) -> Packed:
        """Return the last output of these steps; of a router its branches' output, not its agent's."""
        for name in reversed(before):
            scope = self._scopes.get((run_id, name))
            if scope is not None and scope.status == "succeeded":
                return scope.output
            rows = [row for row in self._attempts_of(run_id) if (row.key.address, row.key.step) == (ROOT, name)]
            outputs = [row.output for row in rows if row.status == "succeeded" and row.output is not None]
            if outputs:
                return outputs[-1]
        return self._run(run_id).input
