"""What an attempt is claimed with under limits: a step's agents are asked once in each process, and no thread is taken for what is known."""

from __future__ import annotations

from flujo_client import Pipeline, Step, StepConfig, UsageLimits
from flujo_client.config.manager import Settings
from flujo_worker.agents.answer import AgentAnswer
from flujo_worker.attempts import claim
from flujo_worker.testing import LocalEngine

LIMITS = UsageLimits(total_tokens_limit=100)


async def answer(data):
    return AgentAnswer(data)


def looked_up(monkeypatch, engine, pipeline, runs):
    """How often the agents of a pipeline were looked up in so many runs, and what each of its attempts reserved."""
    steps, calls_of = [], claim.calls_of
    monkeypatch.setattr(
        claim, "calls_of", lambda step, *rest, **named: steps.append(step.name) or calls_of(step, *rest, **named)
    )
    results = [engine.run(pipeline, "in", limits=LIMITS) for _ in range(runs)]
    assert all(each.success for each in results)
    return steps, [attempt.estimate_tokens for each in results for attempt in engine.history(each.run_id)]


def test_the_agents_of_a_step_are_looked_up_once(monkeypatch):
    pipeline = Pipeline([Step(name, answer, config=StepConfig(expected_tokens=7)) for name in "ab"])
    with LocalEngine(Settings()) as engine:
        assert looked_up(monkeypatch, engine, pipeline, 3) == (["a", "b"], [7] * 6)


def test_what_attempts_have_cost_is_asked_for_each(monkeypatch):
    """Requirements §2.7: it changes."""
    pipeline = Pipeline([Step("a", answer, config=StepConfig(expected_tokens=7))])
    settings = Settings.model_validate({"cost": {"estimation_strategy": "historical"}})
    with LocalEngine(settings) as engine:
        assert looked_up(monkeypatch, engine, pipeline, 3) == (["a"] * 3, [7] * 3)
