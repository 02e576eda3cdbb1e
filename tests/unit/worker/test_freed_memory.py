"""A worker's memory: garbage is collected before it takes much, and what a burst has freed is returned to the system."""

import ctypes
import gc

import pytest

from flujo_worker.cli.serving import COLLECT_EVERY
from flujo_worker.liveness.watchdog import GARBAGE_BYTES, RARELY, WORTH_BYTES, FreedMemory, resident_bytes


def at_once(function):
    function()


@pytest.fixture(autouse=True)
def _as_in_a_worker():
    threshold = gc.get_threshold()
    gc.set_threshold(COLLECT_EVERY, RARELY)
    yield
    gc.set_threshold(*threshold)


def test_memory_that_a_burst_has_freed_is_returned_when_nothing_runs(monkeypatch):
    """It is looked at twice a second, and the call takes milliseconds: a few megabytes are not worth it. Garbage is searched for less often."""
    has, runs, trimmed, collected = [100 << 20], [True], [], []
    monkeypatch.setattr(gc, "collect", lambda: collected.append(has[0]))

    def trim(_):
        trimmed.append(has[0])
        has[0] = 120 << 20

    memory = FreedMemory(lambda: not runs[0], at_once, resident=lambda: has[0], trim=trim)
    has[0] += 50 << 20
    memory.look()
    assert trimmed == []
    runs[0] = False
    for _ in range(3):
        memory.look()
    has[0] += WORTH_BYTES
    memory.look()
    assert trimmed == [150 << 20]
    has[0] += 1
    memory.look()
    assert len(trimmed) == 2
    assert len(collected) == 1


class Circle:
    """Garbage that no count of references frees, and that is one object for the interpreter's count."""

    def __init__(self):
        self.itself, self.data = self, bytearray(b"x") * 1_000_000


def test_garbage_is_collected_before_it_takes_much_memory():
    """A worker's steps may leave little garbage that is large: the interpreter counts objects, so this would take 400 GB."""
    memory, before = FreedMemory(lambda: False, at_once), resident_bytes()
    most = before
    for number in range(1000):
        Circle()
        if number % 20 == 0:  # in half a second, for example
            memory.look()
            most = max(most, resident_bytes())
    assert most < before + max(GARBAGE_BYTES, before / 4) + (60 << 20)


def test_a_process_that_keeps_pythons_thresholds_is_left_to_them():
    """Your own app may run in it."""
    gc.set_threshold(700, 10, 10)
    begun, has = [], [100 << 20]
    memory = FreedMemory(lambda: False, begun.append, resident=lambda: has[0], trim=lambda _: None)
    has[0] += 1 << 30
    memory.look()
    assert begun == []


def test_a_search_for_garbage_that_does_not_end_is_not_begun_again():
    begun, has = [], [100 << 20]
    memory = FreedMemory(lambda: False, begun.append, resident=lambda: has[0], trim=lambda _: None)
    for _ in range(3):
        has[0] += 100 << 20
        memory.look()
    assert len(begun) == 1
    begun.pop()()
    memory.look()
    assert begun == []
    has[0] += 101 << 20
    memory.look()
    assert len(begun) == 1


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="this C library cannot return memory")
def test_the_memory_below_a_block_that_is_in_use_is_returned_too():
    ctypes.CDLL(None).malloc_trim(0)  # the blocks shall not take the room that earlier tests of this process have freed
    # not `bytearray(100_000)`: zeroed pages need not be resident
    memory, blocks = FreedMemory(lambda: True, at_once), [bytearray(b"x") * 100_000 for _ in range(600)]
    del blocks[:-1]
    before = resident_bytes()
    memory.look()
    assert resident_bytes() < before - (40 << 20)
    assert len(blocks) == 1
