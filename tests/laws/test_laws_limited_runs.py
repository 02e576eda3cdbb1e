"""Law 7 over whole runs: whatever happens to messages and workers, no budget exceeds its limit, and all spending is booked."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shapes import SHAPES, Rough
from test_laws_budgets import held_to_its_limit
from test_laws_engine import meet

from flujo_client import Pipeline, Step, StepConfig, UsageLimits
from flujo_client.contract.outcome import Usage
from flujo_worker.agents.answer import AgentAnswer
from flujo_worker.domain.budget import Budget
from tests.support.breadth import examples
from tests.support.memory import asked

lawful = settings(max_examples=examples(25), deadline=None)
mishaps = st.lists(
    st.tuples(st.sampled_from(("deliver", "deliver", "deliver", "double", "drop", "wait", "haunt")), st.integers(0, 7)),
    max_size=25,
)
EXPECTED = StepConfig(max_retries=1, expected_tokens=10)


def spend(data):
    return AgentAnswer(data, Usage(6, 4, 1, 0.1))


def overspend(data):
    return AgentAnswer(data, Usage(6, 9, 1, 0.1))


def spending(agent):
    step = Step("call", agent, config=EXPECTED)
    child = Pipeline([step, Step("again", agent, config=EXPECTED)]).as_step("legal", own_run=True)
    return Pipeline(
        [
            Step("first", agent, config=EXPECTED, usage_limits=UsageLimits(total_tokens_limit=30)),
            Step.parallel("fan", {"a": step, "b": child, "c": step}, on_branch_failure="ignore"),
            Step("last", agent, config=EXPECTED),
        ]
    )


class Limited(Rough):
    """A rough engine whose run stands under a limit."""

    def __init__(self, agent, tokens):
        self._agent, self._tokens = agent, tokens
        super().__init__(min(SHAPES))
        claim = self.stores.attempts.claim

        def watched(*args, **rest):
            answer = claim(*args, **rest)
            self.look()
            return answer

        self.stores.attempts.claim = watched

    def look(self):
        for budget in asked(self.stores).read_budgets().values():
            held_to_its_limit(budget)

    def enqueue(self, *_, **__):
        return super().enqueue(spending(self._agent), "in", limits=UsageLimits(total_tokens_limit=self._tokens))


def a_run_is_held_to_its_limit(agent, tokens, happened):
    with Limited(agent, tokens) as engine:
        for mishap, place in happened:
            meet(engine, mishap, place)
            engine.look()
        engine.settle()
        run = engine.stores.reads.read_run(engine.run_id)
        budget = asked(engine.stores).read_budgets()[f"run:{engine.run_id}"]
        assert (budget.spent.tokens, budget.reserved.tokens) == (run.tokens, 0)
        assert run.status == "failed" if budget.overrun.tokens else run.status in ("succeeded", "failed")


@pytest.mark.parametrize("tokens", [5, 25, 40, 60, 200])
@pytest.mark.parametrize("agent", [spend, overspend])
@lawful
@given(happened=mishaps)
def test_law_7_over_whole_runs(agent, tokens, happened):
    a_run_is_held_to_its_limit(agent, tokens, happened)


@pytest.mark.parametrize(
    ("method", "mutant"),
    [
        ("fits", lambda *_: True),
        ("reserve", lambda budget, _: budget),
        ("settle", lambda budget, *_: budget),
    ],
)
def test_law_7_notices_in_whole_runs(monkeypatch, method, mutant):
    monkeypatch.setattr(Budget, method, mutant)
    with pytest.raises(AssertionError):
        a_run_is_held_to_its_limit(spend, 25, [("deliver", 0)] * 8)
