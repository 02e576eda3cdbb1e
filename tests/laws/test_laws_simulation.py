"""The laws of the engine over simulated schedules: whatever is lost, doubled, reordered, delayed or killed, runs end as if nothing had been.

Every run ends, each result is merged once, output and history are those of a run where nothing goes wrong, budgets have booked what was
spent, no limit is ever exceeded, and nothing is left over. Each law has a mutant of the engine that breaks it and is found.

A check tries the same seeds every time, `make laws` thousands of others. `FLUJO_SEED` repeats one, and prints its schedule.
"""

import logging
import os
import secrets
import time
from dataclasses import replace

import pytest
from hypothesis import settings
from simulated_runs import prepared
from simulated_world import simulated_time
from simulation_laws import LawBroken
from simulator import Simulation

from flujo_worker.domain.budget import Budget
from flujo_worker.recovery.lost_work import LostWork
from flujo_worker.store.memory.admission import AdmissionInMemory
from flujo_worker.store.memory.attempts import AttemptsInMemory
from flujo_worker.store.memory.backlog import BacklogInMemory
from flujo_worker.store.memory.budgets import BudgetsInMemory
from flujo_worker.store.memory.limits import LimitsInMemory
from flujo_worker.store.memory.scopes import ScopesInMemory
from tests.support.breadth import examples

SEEDS_PER_MUTANT = 150


@pytest.fixture(autouse=True, scope="module")
def simulated():
    """Let engines go by the simulator's clock, log nothing, and leave suspects to `test_laws_losses.py`: they wait in threads."""
    with simulated_time(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("flujo_worker.store.memory.attempts.SUSPECT_AFTER", 10**6)
        prepared()
        logging.disable(logging.CRITICAL)
        yield
        logging.disable(logging.NOTSET)


def seeds():
    """Return the seeds to try: the one that is asked for, new ones for a search, else always the same."""
    if (asked := os.environ.get("FLUJO_SEED")) is not None:
        return [int(asked)]
    first = secrets.randbelow(2**40) if settings.get_current_profile_name() == "search" else 0
    return range(first, first + examples(50))


def test_whatever_happens_in_a_schedule_the_laws_hold(capsys):
    """M-013, M-006: what comes twice, late or not at all is neither merged twice, nor charged twice, nor lost."""
    chosen, began = seeds(), time.process_time()
    for seed in chosen:
        simulation = Simulation(seed)
        try:
            simulation.run()
        finally:
            if len(chosen) == 1:
                print("\n".join(simulation.trace))
    rate = len(chosen) / (time.process_time() - began)
    with capsys.disabled():
        print(f"seeds {chosen[0]} to {chosen[-1]}: {len(chosen)} schedules, {rate:.0f} per second of processor time")


def test_a_seed_is_always_the_same_schedule():
    first, again = Simulation(11), Simulation(11)
    assert first.run().trace == again.run().trace
    assert len(first.trace) > 50


def is_found():
    """Run schedules until one breaks a law."""
    with pytest.raises(LawBroken, match="FLUJO_SEED=") as found:
        list(map(Simulation.run, map(Simulation, range(SEEDS_PER_MUTANT))))
    print(str(found.value).partition("\n")[0][:300])


def mutant(monkeypatch, owner, name, make):
    """Put a mutant in the place of a method; `make` gets the method."""
    monkeypatch.setattr(owner, name, make(getattr(owner, name)))


@pytest.mark.large
def test_mutant_who_merges_what_another_worker_is_to_do_again(monkeypatch):
    """It looks neither at the fence nor at whose the attempt is: a stopped process that continues merges too."""

    def blind(judge):
        def judged(stores, decision):
            row = stores._t.attempts[decision.notice.envelope.key]
            return "merged" if row.status in ("queued", "running") else judge(stores, decision)

        return judged

    mutant(monkeypatch, AttemptsInMemory, "_judge", blind)
    is_found()


@pytest.mark.large
def test_mutant_who_merges_what_is_merged(monkeypatch):
    mutant(monkeypatch, AttemptsInMemory, "_judge", lambda _: lambda *_: "merged")
    is_found()


@pytest.mark.large
def test_mutant_whose_sweeper_sends_nothing(monkeypatch):
    mutant(monkeypatch, LostWork, "_publish", lambda _: lambda *_: None)
    is_found()


@pytest.mark.large
@pytest.mark.parametrize("why", ["ready", "lost", "gone", "epoch"])
def test_mutant_who_does_not_send_again(monkeypatch, why):
    def forgetful(why_due):
        def overlooking(*args, **rest):
            found = why_due(*args, **rest)
            return None if found == why else found

        return overlooking

    mutant(monkeypatch, BacklogInMemory, "_why_due", forgetful)
    is_found()


@pytest.mark.large
def test_mutant_who_claims_what_another_worker_has(monkeypatch):
    def generous(refusal):
        def refused(*args, **rest):
            found = refusal(*args, **rest)
            return None if found == "busy" else found

        return refused

    mutant(monkeypatch, AttemptsInMemory, "_refusal", generous)
    is_found()


@pytest.mark.large
def test_mutant_who_never_releases_a_permit(monkeypatch):
    mutant(monkeypatch, LimitsInMemory, "_uses_permit", lambda _: lambda _, key, permit: permit.fence is not None)
    mutant(
        monkeypatch, LimitsInMemory, "release_permit", lambda _: lambda stores, key, fence, name: stores._offer(name)
    )
    is_found()


@pytest.mark.large
def test_mutant_who_lets_too_many_attempts_run(monkeypatch):
    mutant(monkeypatch, LimitsInMemory, "_in_use", lambda _: lambda *_: 0)
    is_found()


@pytest.mark.large
def test_mutant_who_admits_too_many_runs(monkeypatch):
    mutant(monkeypatch, AdmissionInMemory, "_state", lambda state: lambda *args: replace(state(*args), taken=0))
    is_found()


@pytest.mark.large
def test_mutant_who_never_releases_a_place(monkeypatch):
    mutant(monkeypatch, AdmissionInMemory, "_release_places", lambda _: lambda *_: None)
    is_found()


@pytest.mark.large
def test_mutant_who_signals_no_lost_join(monkeypatch):
    mutant(monkeypatch, ScopesInMemory, "missed_joins", lambda _: lambda *_: [])
    is_found()


@pytest.mark.large
@pytest.mark.parametrize("method", ["reserve", "settle"])
def test_mutant_who_does_not_book(monkeypatch, method):
    mutant(monkeypatch, Budget, method, lambda _: lambda budget, *_: budget)
    is_found()


@pytest.mark.large
def test_mutant_who_books_every_claim_again(monkeypatch):
    def twice(settle):
        def settled(stores, run, claim, usage, **rest):
            stores._t.spends.pop(claim, None)
            return settle(stores, run, claim, usage, **rest)

        return settled

    mutant(monkeypatch, BudgetsInMemory, "settle", twice)
    is_found()


@pytest.mark.large
def test_mutant_who_does_not_hear_a_cancel(monkeypatch):
    mutant(monkeypatch, BacklogInMemory, "runs_to_stop", lambda _: lambda *_: [])
    is_found()
