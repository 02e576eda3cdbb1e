"""Admission in memory: the same gates, policies and turns as in Postgres."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from math import inf
from typing import Final

from flujo_client.contract.admission import WAITING_S, Gate, waits_for
from flujo_client.errors import AdmissionRefused
from flujo_worker.domain.admission import GateState, WaitingRun, admit
from flujo_worker.domain.values import SLEEP
from flujo_worker.ports import Admitted
from flujo_worker.store.memory.rows import StoredAttempt, StoredRun, StoredWait
from flujo_worker.store.memory.tables import InMemory
from flujo_worker.store.shared_rules import ADMITTED_AT_ONCE, grace_s

NOT_BEGUN: Final = sys.float_info.max


class AdmissionInMemory(InMemory):
    """The port `AdmissionStore`, and the gates of a run that is recorded."""

    def admit(self, ended: Collection[str] | None = None, *, again: Collection[str] = ()) -> Admitted:  # noqa: ARG002 - it looks at all
        self._release_places(ended)
        now, runs = self._t.clock(), self._t.runs
        for run in [run for run in self._t.waiting_runs if not (run in runs and self._t.may_run(runs[run]))]:
            del self._t.waiting_runs[run]
        first = [self._waiting_run(run, row) for run, row in self._t.waiting_runs.items() if row.not_before <= now]
        names = {gate.name for run in first for gate in run.gates}
        states = {name: self._state(name) for name in names}
        decision = admit(first, states)
        for run, gate in decision.moved:
            self._t.waiting_runs[run].gate, self._t.waiting_runs[run].not_before = gate, -inf
        for run, gate in decision.kept:
            self._take_place(run, gate)
        self._t.turns.update(decision.states)
        grace = grace_s(min(len(decision.admitted), ADMITTED_AT_ONCE))
        keys = [self._pass(run, now + grace) for run in decision.admitted]
        return Admitted(keys, {gate.name for _, gate in decision.moved})

    def live_holder(self, gates: Sequence[Gate]) -> str | None:
        """Return the run of a singleton that is under way; raises AdmissionRefused where a gate without room refuses."""
        for gate in gates:
            live = self._live_at(gate)
            if gate.policy == "drop" and not self._has_room(gate):
                raise AdmissionRefused(f"{gate.name} is reached; nothing was recorded")
            if gate.policy == "return" and live:
                return live[0]
        return None

    def enter(self, run: StoredRun, first: StoredAttempt) -> None:
        """Let a new run come to its gates: its first attempt is due if it is admitted."""
        full = next((gate for gate in run.gates if gate.wait_s or not self._has_room(gate)), None)
        if full is None:
            self._take_places(run)
            return
        for gate in run.gates:
            live = self._live_at(gate)
            if gate.policy == "cancel_oldest" and (gate.most is None or not self._has_room(gate)):
                for each in live[: len(live) - (gate.most or 1) + 1]:
                    self._t.replace(each, f"replaced by run {run.ticket.run} ({gate.name})", by=run.ticket.run)
        now = self._t.clock()
        not_before = now + full.wait_s if full.wait_s else -inf
        for gate in run.gates:
            if gate.decides_at_once and self._has_room(gate):
                self._take_place(run.ticket.run, gate)
        self._t.waiting_runs[run.ticket.run] = StoredWait(full, next(self._t.arrivals), not_before)
        first.available_at = now + WAITING_S
        self._t.add_event(run.ticket.run, None, "run.waiting", "info", {"gate": full.name})

    def _pass(self, run: str, available_at: float) -> str:
        del self._t.waiting_runs[run]
        row = self._t.runs[run]
        self._take_places(row)
        waited = round(self._t.clock() - row.created_at, 3)
        self._t.add_event(run, None, "run.admitted", "info", {"waited_s": waited})
        [first] = [each for each in self._t.attempts_of(run) if each.is_live]
        first.available_at = available_at
        return str(first.key)

    def _take_places(self, run: StoredRun) -> None:
        for gate in run.gates:
            self._take_place(run.ticket.run, gate)

    def _take_place(self, run: str, gate: Gate) -> None:
        if gate.most is not None:
            until = inf if gate.period_s is None else NOT_BEGUN
            self._t.places.setdefault(gate.name, {}).setdefault(run, until)

    def _release_places(self, ended: Collection[str] | None) -> None:
        now = self._t.clock()
        windows = {row.gate.name for row in self._t.waiting_runs.values() if row.gate.is_window}
        for name, places in self._t.places.items():
            for run in [*places]:
                if ended is not None and run not in ended:
                    continue
                if places[run] == NOT_BEGUN:
                    places[run] = self._period_of(run, name)
                until = places[run]
                is_over = until <= now or (until >= NOT_BEGUN and not self._is_live_run(run))
                if is_over or (name in windows and self._rests(run)):
                    del places[run]

    def _period_of(self, run: str, gate: str) -> float:
        """Return until when a run holds a place that is held for a period from its beginning."""
        row = self._t.runs.get(run)
        if row is None or row.started_at is None:
            return NOT_BEGUN
        return next(row.started_at + each.period_s for each in row.gates if each.name == gate and each.period_s)

    def _has_room(self, gate: Gate) -> bool:
        waits = any(row.gate.name == gate.name for row in self._t.waiting_runs.values())
        return gate.most is None or (not waits and self._state(gate.name).taken < gate.most)

    def _live_at(self, gate: Gate) -> list[str]:
        """Return the live runs that are at a gate, the oldest first; one that is being cancelled does not count."""
        waiting = [run for run, row in self._t.waiting_runs.items() if row.gate.name == gate.name]
        placed = [run for run, until in self._t.places.get(gate.name, {}).items() if until == inf]
        runs = self._t.runs
        live = [run for run in dict.fromkeys([*placed, *waiting]) if run in runs and self._t.may_merge(runs[run])]
        return sorted(live, key=lambda run: (runs[run].created_at, run))

    def _state(self, name: str) -> GateState:
        now, known = self._t.clock(), self._t.turns.get(name, GateState(0))
        taken = sum(until > now for until in self._t.places.get(name, {}).values())
        return GateState(taken, known.turn, known.turns)

    def waits_for(self, row: StoredWait) -> str:
        return waits_for(row.gate.name, row.gate.most, self._state(row.gate.name).taken)

    def admissible_at(self) -> list[float]:
        """Return when time alone may admit a waiting run: a debounce is over, or a throttle's place is free."""
        gates = {gate.name for run in self._t.waiting_runs for gate in self._t.runs[run].gates}
        places = [until for name in gates for until in self._t.places.get(name, {}).values() if until < inf]
        return places + [row.not_before for row in self._t.waiting_runs.values() if row.not_before > -inf]

    def _is_live_run(self, run: str) -> bool:
        return run in self._t.runs and self._t.runs[run].is_live

    def _rests(self, run: str) -> bool:
        """Return whether a run waits for a person, or sleeps for more than a minute, and nothing else of it could run."""
        rows = [row for row in self._t.family_of(run) if row.is_live and not row.is_held]
        later = self._t.clock() + 60.0
        return bool(rows) and all(
            row.status == "paused" or (row.status == "ready" and row.waits_for == SLEEP and row.available_at > later)
            for row in rows
        )

    def _waiting_run(self, run: str, row: StoredWait) -> WaitingRun:
        known = self._t.runs[run]
        held = frozenset(name for name, places in self._t.places.items() if run in places)
        return WaitingRun(run, row.gate.name, row.gate.flow, known.ticket.priority or 0, row.arrived, known.gates, held)
