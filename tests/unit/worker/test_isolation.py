"""Suspects: next to the worker while that is enough, else in it and alone; no one waits for a place in a slot."""

import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
from celery import Celery

from flujo_worker.attempts.isolation import ALONE_AFTER, DeliveryResult, Isolation, IsolationGate, NoFreeSlot, NoProcess
from flujo_worker.recovery.quarantine import import_path_of
from tests.support.builders import enqueued

ENVELOPE = enqueued().first
SOON_S, LATE_S = 0.05, 10.0


class Processes:
    """Processes that perform, or that cannot be had."""

    def __init__(self, *raised):
        self.raised, self.rooms = list(raised), []

    def perform(self, envelope, room):
        self.rooms.append(room)
        if self.raised:
            raise self.raised.pop(0)
        return DeliveryResult("merged", is_part=True)


class Ledger:
    """Keeps what was postponed."""

    def __init__(self):
        self.postponed = []

    def postpone(self, key, delay_s):
        self.postponed.append((key, 1.0 <= delay_s <= 3.0))


def never():
    raise AssertionError("performed beside others")


def test_a_suspect_runs_in_a_process_of_its_own_beside_what_runs_here():
    processes = Processes()
    isolation = Isolation(Ledger(), processes)
    with isolation.gate.shared():
        assert isolation.perform(ENVELOPE, ALONE_AFTER - 1, never) == DeliveryResult("merged", is_part=True)
    assert processes.rooms == ["apart"]


def test_one_that_went_down_with_its_worker_has_worker_and_process_for_itself():
    processes = Processes()
    Isolation(Ledger(), processes).perform(ENVELOPE, ALONE_AFTER, never)
    assert processes.rooms == ["alone"]


def test_a_suspect_without_a_place_waits_in_its_row():
    ledger = Ledger()
    assert Isolation(ledger, Processes(NoFreeSlot())).perform(ENVELOPE, 2, never) == DeliveryResult("waiting")
    assert ledger.postponed == [(ENVELOPE.key, True)]


@pytest.mark.parametrize("processes", [None, Processes(*[NoProcess("no memory")] * 2)])
def test_where_no_process_can_be_had_a_suspect_has_this_one_for_itself(processes):
    isolation, done = Isolation(Ledger(), processes), DeliveryResult("merged")
    with ThreadPoolExecutor() as threads:
        with isolation.gate.shared():
            waiting = threads.submit(isolation.perform, ENVELOPE, 2, lambda: done)
            with pytest.raises(TimeoutError):
                waiting.result(SOON_S)
        assert waiting.result(LATE_S) == done


def test_whoever_is_to_be_alone_goes_before_those_who_come_later():
    """Else a busy worker would never be empty."""
    gate, entered = IsolationGate(), []
    leave = threading.Event()

    def enter(name, kind):
        with kind():
            entered.append(name)
            return leave.wait(LATE_S) if name == "first" else True

    with ThreadPoolExecutor() as threads:
        first = threads.submit(enter, "first", gate.shared)
        while not entered:
            pass
        alone = threads.submit(enter, "alone", gate.alone)
        while not gate._is_reserved:
            pass
        later = threads.submit(enter, "later", gate.shared)
        leave.set()
        assert all(each.result(LATE_S) for each in (first, alone, later))
    assert entered == ["first", "alone", "later"]


def test_the_gate_opens_again_after_an_error():
    gate = IsolationGate()
    for kind in (gate.shared, gate.alone):
        with pytest.raises(ValueError, match="oops"), kind():
            raise ValueError("oops")
    with gate.alone():
        pass


def test_an_app_is_found_where_another_process_can_import_it(monkeypatch):
    app, module = Celery("shop", set_as_current=False), types.ModuleType("shop_of_somebody")
    assert import_path_of(app) is None
    module.celery = app
    monkeypatch.setitem(sys.modules, "shop_of_somebody", module)
    assert import_path_of(app) == "shop_of_somebody:celery"


def test_an_app_that_celery_alone_knows_is_found_nowhere(monkeypatch):
    app = Celery("shop", set_as_current=False)
    monkeypatch.setattr("celery._state.default_app", app)
    assert import_path_of(app) is None
