"""A process knows the fleet's settings without a query for each call, and keeps them while the store is away (C-48)."""

import threading
import time

from flujo_client.contract.limits import GuardRow
from flujo_worker.errors import StoreError
from flujo_worker.guards.live import LiveGuards


def row(failures):
    return GuardRow("breaker", "*", {"failures": failures})


class Store:
    """Counts how often it is read; away while `rows` is None."""

    def __init__(self, *rows):
        self.rows, self.reads = list(rows), 0

    def read(self):
        self.reads += 1
        if self.rows is None:
            raise StoreError("away")
        return list(self.rows)


def failures(guards):
    return guards.current().breaker("acme:large").failures


def test_it_is_read_once_however_many_ask():
    store = Store(row(3))
    live = LiveGuards(store.read, every_s=60.0)
    assert [failures(live) for _ in range(100)] == [3] * 100
    assert store.reads == 1


def test_a_change_is_known_when_it_is_read_again():
    store = Store(row(3))
    live = LiveGuards(store.read, every_s=0.05)
    assert failures(live) == 3
    store.rows = [row(7)]
    deadline = time.monotonic() + 10
    while failures(live) != 7:
        assert time.monotonic() < deadline
    assert store.reads == 2


def test_what_is_known_counts_while_the_store_is_away():
    store = Store(row(3))
    live = LiveGuards(store.read, [row(9)], every_s=0.0)
    store.rows = None
    assert failures(live) == 9
    store.rows = [row(3)]
    assert failures(live) == 3
    store.rows = None
    assert failures(live) == 3


def test_no_one_waits_for_another_ones_read():
    reading, may_end = threading.Event(), threading.Event()

    def read():
        reading.set()
        may_end.wait(10)
        return [row(3)]

    live = LiveGuards(read, [row(9)], every_s=0.0)
    reader = threading.Thread(target=live.current)
    reader.start()
    assert reading.wait(60)
    assert failures(live) == 9
    may_end.set()
    reader.join()
    assert live.known.breaker("acme:large").failures == 3
