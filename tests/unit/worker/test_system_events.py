"""What a worker tells outside its attempts: nothing is held up by it, and nothing is lost in silence (SYS-21)."""

import logging

import pytest
import structlog

from flujo_client.contract.outcome import Event
from flujo_worker.errors import StoreError
from flujo_worker.observe import log
from flujo_worker.observe.system import BATCH, SystemEvents


class Ledger:
    """Takes events as long as it is there."""

    def __init__(self):
        self.written, self.away = [], None

    def note(self, run, events, *, key=None):
        if self.away:
            raise self.away
        assert (run, key) == (None, None)
        self.written += events


@pytest.fixture
def ledger():
    return Ledger()


def names(events):
    return [event.name for event in events]


def test_each_event_names_its_worker_and_keeps_its_time(ledger):
    system = SystemEvents(ledger, lambda: "w1")
    system.put(Event("worker.started", {"build": "1"}, at=5.0))
    assert system.write() == 1
    assert ledger.written == [Event("worker.started", {"worker": "w1", "build": "1"}, "info", 5.0)]
    assert system.write() == 0


def test_what_finds_no_place_is_counted_and_the_count_is_told(ledger):
    system = SystemEvents(ledger, lambda: "w1", most=3)
    for number in range(5):
        system.put(Event(f"e{number}"))
    system.write()
    assert names(ledger.written) == ["e0", "e1", "e2", "events.dropped"]
    assert (ledger.written[-1].data, ledger.written[-1].level) == ({"worker": "w1", "count": 2}, "warning")
    system.put(Event("after"))
    system.write()
    assert names(ledger.written)[4:] == ["after"]


@pytest.mark.parametrize("error", [StoreError("gone"), ValueError("no such row")])
def test_what_could_not_be_written_is_counted_too(ledger, error):
    system = SystemEvents(ledger, lambda: "w1", most=3)
    for number in range(4):
        system.put(Event(f"e{number}"))
    ledger.away = error
    assert system.write() == 0
    ledger.away = None
    system.put(Event("after"))
    system.write()
    assert names(ledger.written) == ["after", "events.dropped"]
    assert ledger.written[-1].data["count"] == 4


def test_many_are_written_in_batches(ledger):
    system = SystemEvents(ledger, lambda: "w1")
    for number in range(BATCH + 1):
        system.put(Event(str(number)))
    assert [system.write(), system.write(), system.write()] == [BATCH, 1, 0]


@pytest.fixture
def started(ledger):
    system = SystemEvents(ledger, lambda: "w1").start()
    yield system
    system.stop()


def test_a_warning_of_the_engine_becomes_an_event_without_its_secrets(ledger, started):
    try:
        raise OSError("password=hunter2")
    except OSError:
        logging.getLogger("flujo_worker.recovery.sweeper").exception("sweep of %s put off", "postgres://u:hunter2@h/d")
    logging.getLogger("flujo_worker.recovery.sweeper").info("not worth it")
    logging.getLogger("acme").error("somebody else's")
    started.stop()
    [event] = ledger.written
    assert (event.name, event.level) == ("worker.log", "error")
    assert event.data == {
        "worker": "w1",
        "logger": "flujo_worker.recovery.sweeper",
        "message": "sweep of postgres://u:***@h/d put off",
        "error": "OSError: password=***",
    }


def test_that_events_are_not_written_is_no_event(ledger, started):
    """Else each second's failure would be the next second's event."""
    logging.getLogger("flujo_worker.observe.system").error("not written")
    started.stop()
    assert ledger.written == []


def test_a_line_outside_attempts_is_told_of_the_worker(ledger, started):
    """SYS-21: with structlog set up as a worker of ours does."""
    structlog.configure(processors=[log.collect_event, structlog.processors.JSONRenderer()])
    try:
        structlog.get_logger().info("cache_warmed", entries=3, api_key="hunter2")
    finally:
        structlog.reset_defaults()
    started.stop()
    structlog.get_logger().info("too late")
    [event] = ledger.written
    assert (event.name, event.data) == ("cache_warmed", {"worker": "w1", "entries": 3, "api_key": "***"})


def test_what_a_process_still_has_is_written_when_it_stops(ledger, started):
    started.put(Event("worker.stopped"))
    started.stop()
    assert names(ledger.written) == ["worker.stopped"]
