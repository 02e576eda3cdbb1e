"""Which test process runs which module (`tests/scheduling.py`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from scheduling import LONGEST, TwoEnded, in_order

TESTS = Path(__file__).parents[1]


@dataclass(eq=False)
class Node:
    """A test process, with the tests that it was sent."""

    gateway: SimpleNamespace
    sent: list[int] = field(default_factory=list)
    shutting_down: bool = False

    def send_runtest_some(self, indices):
        self.sent += indices

    def shutdown(self):
        self.shutting_down = True


def begun(processes, modules, tests=5):
    """Return the module that each process begins with, and the scheduler."""
    values = {"tx": ["popen"] * processes}
    config = SimpleNamespace(getvalue=values.get, option=SimpleNamespace(loadscopereorder=True))
    scheduler = TwoEnded(config)
    nodes = [Node(SimpleNamespace(id=f"gw{number}")) for number in range(processes)]
    collected = [f"{module}::{test}" for module in modules for test in range(tests)]
    for node in nodes:
        scheduler.add_node(node)
        scheduler.add_node_collection(node, collected)
    scheduler.schedule()
    assert all(node.sent == list(range(node.sent[0], node.sent[0] + tests)) for node in nodes), "a module was split"
    return [modules[node.sent[0] // tests] for node in nodes], scheduler, nodes


@pytest.mark.parametrize(
    ("processes", "first"), [(1, ["f"]), (2, ["a", "f"]), (4, ["a", "b", "c", "f"]), (5, ["a", "b", "c", "f", "d"])]
)
def test_the_last_of_four_processes_begins_at_the_end(processes, first):
    assert begun(processes, "abcdef")[0] == first


def test_a_process_that_has_two_tests_left_is_given_its_next_module():
    _, scheduler, [front, end] = begun(2, "abcd")
    for index in range(3):
        assert len(front.sent) == 5
        scheduler.mark_test_complete(front, index)
    for index in range(15, 18):
        scheduler.mark_test_complete(end, index)
    assert front.sent == list(range(10))
    assert end.sent == [*range(15, 20), *range(10, 15)]


def test_modules_that_wait_come_first_and_those_that_compute_last():
    paths = [
        "acceptance/test_a.py",
        "laws/test_b.py",
        "acceptance/test_quarantine.py",
        "unit/test_c.py",
        "fuzz/test_d.py",
    ]
    tests = [SimpleNamespace(path=TESTS / path, name=name) for path in paths for name in ("x", "y")]
    ordered = in_order(tests)
    assert [each.path.name for each in ordered[::2]] == [
        "test_quarantine.py", "test_a.py", "test_c.py", "test_b.py", "test_d.py"
    ]  # fmt: skip
    assert [each.name for each in ordered] == ["x", "y"] * 5


def test_the_longest_modules_exist():
    assert {each.name for each in TESTS.rglob("test_*.py")} >= LONGEST
