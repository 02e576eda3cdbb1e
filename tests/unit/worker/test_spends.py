"""A spend has the model that it was for, if that was one."""

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from flujo_client import Pipeline, Step
from flujo_client.contract.outcome import NO_USAGE
from flujo_worker.runtime.attempt_run import AttemptRun, ModelCall
from tests.support.builders import SPENT


def asking(name):
    """Make an agent with a model of this name."""
    return Agent(TestModel(model_name=name))


def test_the_spend_of_each_attempt_has_its_model(engine):
    engine.run(Pipeline([Step("a", asking("one")), Step("b", asking("other"))]), "in").raise_for_status()
    assert [usage.model for usage in engine.stores.tables.spends.values()] == ["test:one", "test:other"]


@pytest.mark.parametrize(
    ("called", "spent", "model"),
    [(["a", "a"], SPENT, "a"), (["a", "b"], SPENT, None), ([], SPENT, None), (["a"], NO_USAGE, None)],
)
def test_it_has_none_if_there_were_several_or_none(called, spent, model):
    run = AttemptRun()
    run.calls = [ModelCall(name, 0.1) for name in called]
    assert run.of_its_model(spent).model == model
