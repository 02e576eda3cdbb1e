"""A short, repeatable form of `make fuzz`: the stored inputs, and some mutated ones by a constant seed; and that it finds what it should."""

import resource
from random import Random

import fuzz_run
import pytest
from fuzz_run import fuzz
from fuzz_targets import TARGETS, Target

SEED = 21
ROUNDS = 40


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_does_what_none_may(name):
    """M-014: an error is documented, time and memory are bounded."""
    tried, found = fuzz(name, Random(SEED), rounds=ROUNDS)
    assert [f"{each.data!r}: {each.why}" for each in found] == []
    assert tried >= ROUNDS


def grow(_data):
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # only what goes beyond it is noticed
    return len(b"x" * (2 * fuzz_run.MOST_BYTES + peak))


def hang(_data):
    while True:
        pass


def fail(data):
    raise KeyError(data)


@pytest.mark.parametrize(("use", "why"), [(fail, "KeyError"), (hang, "processor time"), (grow, "MB")])
def test_the_fuzzer_notices(use, why, monkeypatch):
    """An error that is not documented, a loop without end, too much memory."""
    if use is hang:
        monkeypatch.setattr(fuzz_run, "MOST_S", 0.1)
    monkeypatch.setattr(fuzz_run, "MOST_BYTES", 16 * 1024 * 1024)
    monkeypatch.setitem(TARGETS, "body", Target(use, (ValueError,), lambda: [b"x"], [b"y"]))
    _, found = fuzz("body", Random(1), rounds=1)
    assert why in found[0].why


def test_a_seed_gives_the_same_inputs_again(monkeypatch):
    """What was found on one machine is found on another."""
    runs = []
    for _ in range(2):
        given = []
        monkeypatch.setitem(TARGETS, "body", TARGETS["body"]._replace(use=given.append))
        fuzz("body", Random(3), rounds=20)
        runs.append(given)
    assert runs[0] == runs[1]
    assert len(set(runs[0])) > 10
