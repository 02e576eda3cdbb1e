"""A failover to a replica that lags, at every boundary of a run, and with every lag: the run ends as if nothing had been (ADR 10).

The replica has received everything up to one boundary and takes over at a later one. Messages of what is lost are still in the broker, and the
process goes on with what it knows.
"""

import logging
from dataclasses import replace
from itertools import combinations, count

import pytest
from simulated_runs import prepared
from simulated_world import simulated_time
from simulation_laws import LawBroken
from simulator import Simulation

from flujo_worker.store.memory.attempts import AttemptsInMemory

QUICK = [("adding", 7), ("child", 29), ("buying", 61)]
THOROUGH = [("adding", 1), ("stumbling", 1), ("buying", 5), ("launching", 23), ("lanes", 61)]
"""Runs, and of how many pairs of boundaries one is tried."""


@pytest.fixture(autouse=True, scope="module")
def simulated():
    with simulated_time():
        prepared()
        logging.disable(logging.CRITICAL)
        yield
        logging.disable(logging.NOTSET)


class Failover(Simulation):
    """One run; its replica falls behind at one boundary, and takes over at another."""

    def __init__(self, case, behind=0, over=0):
        super().__init__(0)
        self.to_come, self._moments, self.boundaries = [prepared()[1][case]], (behind, over), count(1)

    def _disturb(self):
        self._enqueue()
        if not self.broker.messages:
            self.broker.put([self.cases[0].new.first])
        while self._tasks or self.broker.messages:
            self._advance(self._tasks[0]) if self._tasks else self._receive()
            if next(self.boundaries) in self._moments:
                self._fail_over()


def found(case, step=1):
    """Try every pair of boundaries, or each of so many; yield which break a law."""
    whole = Failover(case)
    whole.run()
    moments = list(combinations(range(1, next(whole.boundaries)), 2))[::step]
    for behind, over in moments:
        try:
            Failover(case, behind, over).run()
        except LawBroken as law:
            yield f"{behind} to {over}: {law}"


@pytest.mark.parametrize(("case", "step"), QUICK + [pytest.param(*each, marks=pytest.mark.large) for each in THOROUGH])
def test_a_failover_at_any_boundary_changes_nothing(case, step):
    assert not list(found(case, step))


def test_mutant_who_merges_what_refers_to_lost_values(monkeypatch):
    judge = AttemptsInMemory._judge
    monkeypatch.setattr(AttemptsInMemory, "_judge", lambda stores, made: judge(stores, replace(made, stored=())))
    assert any("is missing or does not fit its digest" in each for each in found("adding"))


def test_a_branch_whose_message_is_of_a_time_when_it_had_no_lane_is_not_taken_at_its_word():
    """A sibling's merge has passed its lane on, and is lost before the message is built: the branch is held again, until the next such merge."""
    Failover("lanes", 71, 77).run()
