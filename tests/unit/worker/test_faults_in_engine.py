"""Messages that are lost, delivered twice or overtaken, in one process: every run ends as without faults, and the seed repeats them."""

from collections import Counter

import pytest

from flujo_client import ParallelStep, Pipeline, Step
from flujo_client.errors import ConfigurationError
from flujo_worker.testing import Faults, LocalEngine

ROUGH = {"lost": 0.3, "doubled": 0.3, "reordered": 0.3}


def pipeline():
    """A step, three branches, a join, a step."""
    branches = {name: Pipeline([Step("one", add), Step("two", add)]) for name in "abc"}
    return Pipeline([Step("first", add), ParallelStep("fan", branches=branches), Step("last", total)])


def add(number):
    return number + 1


def total(outputs):
    return sum(outputs.values())


def played(faults):
    """The result of a run: its output, its delivered messages, and how many seconds it took."""
    with LocalEngine(faults=faults) as engine:
        began, delivered, deliver = engine.now, [], engine.deliver
        engine.deliver = lambda message: delivered.append(deliver(message))
        result = engine.run(pipeline(), 0)
        statuses = Counter(row.status for row in engine.history(result.run_id))
        return (result.run_status, result.output, statuses["succeeded"]), delivered, engine.now - began


def test_a_run_ends_as_it_does_without_faults():
    expected, quiet, took = played(None)
    assert took == 0
    rough = [played(Faults(seed, **ROUGH)) for seed in range(10)]
    assert all(result[:2] == expected[:2] for result, _, _ in rough)
    assert any(len(delivered) > len(quiet) for _, delivered, _ in rough)
    assert any(took > 0 for _, _, took in rough), "a lost message is found only after a while"


def test_the_seed_repeats_the_faults():
    assert played(Faults(3, **ROUGH)) == played(Faults(3, **ROUGH))
    assert len({str(played(Faults(seed, **ROUGH))) for seed in range(4)}) > 1


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_a_share_out_of_range_is_refused(share):
    with pytest.raises(ConfigurationError, match="`lost` of Faults must be at least 0 and below 1"):
        Faults(lost=share)
