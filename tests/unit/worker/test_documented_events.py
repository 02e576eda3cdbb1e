"""Every event of `docs/reference/events.md` is told by some scenario (U-21): by one of these, or in a test that asserts it."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest
from pydantic import BaseModel
from pydantic_ai.models.test import TestModel

from flujo_client import (
    HumanInTheLoopStep,
    ImportStep,
    LoopStep,
    Pipeline,
    PluginOutcome,
    Step,
    StepConfig,
    UsageLimits,
)
from flujo_client.contract.outcome import Usage
from flujo_client.pipeline.router import DynamicParallelRouterStep
from flujo_worker.agents.answer import AgentAnswer
from flujo_worker.agents.factory import make_agent_async
from flujo_worker.testing import LocalEngine

TESTS = Path(__file__).parents[2]
PAGE = (TESTS.parent / "docs/reference/events.md").read_text(encoding="utf-8")
ONCE, BEHIND = StepConfig(max_retries=0), StepConfig(execution_mode="background")
SCHEMA = {"type": "object", "required": ["count"], "properties": {"count": {"type": "integer"}}}
PRECHECK, STRUCTURED, BREAKERS = "test_precheck.py", "test_structured_hint.py", "test_breakers_shared.py"
STEP, STORE, SYSTEM = "test_aros_step.py", "test_store_events.py", "test_system_events.py"
TOOL = "test_agent_tool.py"
ELSEWHERE = {
    "code.changed": "test_code_changes.py",
    "context.migrated": "test_context_migrations.py",
    **dict.fromkeys(["aros.reasoning.precheck.fail", "aros.reasoning.precheck.pass"], PRECHECK),
    **dict.fromkeys(["aros.reasoning.precheck.skipped", "reasoning.validation"], PRECHECK),
    **dict.fromkeys(["aros.soe.enabled", "grammar.applied"], STRUCTURED),
    **dict.fromkeys([f"flujo.breaker.{name}" for name in ("opened", "waiting", "half_open", "closed")], BREAKERS),
    **dict.fromkeys(["grammar.enforce.fail", "grammar.enforce.pass", "grammar.enforce.skipped"], STEP),
    **dict.fromkeys(["attempt.lost", "attempt.sent_again", "run.enqueued"], STORE),
    "attempt.handed_back": "test_store_leases.py",
    **dict.fromkeys(["worker.log", "worker.started", "worker.stopped", "events.dropped"], SYSTEM),
    **dict.fromkeys([f"agent_tool.{name}" for name in ("called", "input_invalid", "dropped")], TOOL),
    **dict.fromkeys([f"agent_tool.{name}" for name in ("output_invalid", "returned", "raised")], TOOL),
    "aros.guidance.not_injected": "test_precheck_guidance.py",
    "flujo.budget.reserved": "test_limits_in_engine.py",
    "flujo.budget.unpriced": "test_default_reservations.py",
    **dict.fromkeys(["attempt.isolated", "attempt.crashed"], "test_quarantine.py"),
    "step.blocked_loop": "test_left_behind.py",
    "step.left_behind": "test_left_behind.py",
    **dict.fromkeys(["step.printed", "step.logged"], "test_step_output.py"),
    "output.dropped": "test_step_output.py",
    "hook.failed": "test_hooks.py",
    "hook.lost": "test_hooks.py",
    "outcome.refused": "test_lost_workers.py",
    "output.cut": "test_structured_output.py",
    "template.undefined": "test_prompt_templates.py",
    **dict.fromkeys(["agent.system.vars", "agent.schema", "agent.tool"], "test_prompt_events.py"),
    "agent.option.dropped": "test_agent_factory.py",
    "template.missing": "test_blueprint_kinds.py",
    "template.resolved": "test_template_events.py",
    "run.unreadable": "test_unreadable_rows.py",
    "run.parked": "test_other_code.py",
    "run.unparked": "test_other_code.py",
    "run.carried_on": "test_other_code.py",
    "run.waits_for_old_code": "test_carrying_on.py",
    "run.cancel_requested": "test_trace_endings.py",
    "background.stale": "test_background_steps.py",
    "background.started_again": "test_background_steps.py",
}
"""What these scenarios cannot tell, and the test that asserts it."""


class Count(BaseModel):
    count: int


class SendsOn:
    def validate(self, data):
        if data == "other":
            return PluginOutcome(success=True)
        return PluginOutcome(success=False, feedback="not so", redirect_to=other)


def other(data):
    return "other"


def same(data):
    return data


class Says:
    def __init__(self, text):
        self.text, self.output_type = text, Count

    async def run(self, data):
        return self.text


def break_down(data):
    raise ValueError("no")


def spend(data):
    return AgentAnswer(data, Usage(10, 10, 1, 1.0))


def control_flow(engine):
    steps = [
        LoopStep("loop", loop_body_pipeline=Pipeline([Step("x", same)]), exit_condition_callable=lambda *_: True),
        Step.parallel("fan", {"a": Step("a", same), "b": Step("b", same)}),
        DynamicParallelRouterStep("route", router_agent=lambda _: ["a"], branches={"a": Step("a", same)}),
        ImportStep("import", pipeline=Pipeline([Step("c", same)]), own_run=True),
        Step("later", same, config=BEHIND),
        Step("redirected", same, plugins=[SendsOn()]),
        Step("shaky", break_down, config=StepConfig(max_retries=1), fallback_step=Step("rescue", same)),
    ]
    run = engine.enqueue(Pipeline(steps), "go")
    engine.drain()
    return [run, engine.fork(run, "shaky")]


def caches(engine):
    cached = Pipeline([Step.cached(Step("x", same))])
    return [
        engine.run(cached, "go").run_id,
        engine.run(cached, "go").run_id,
        engine.run(cached, Random(7).randbytes(2_000_000).hex()).run_id,
    ]


def people(engine):
    asking = Pipeline([HumanInTheLoopStep("ask", "Well?", expires_s=5.0), Step("x", same)])
    first, second = engine.enqueue(asking, "go"), engine.enqueue(asking, "go")
    engine.drain()
    engine.answer(first, "yes")
    engine.pass_time(10)
    return [first, second]


def aros(engine):
    block = {"aop": "full", "schema": SCHEMA, "coercion": {"allow": {"integer": ["str->int"]}}}
    texts = ('{"count": 1}', 'So: {"count": "1"}', "nothing", "{count: 1}", '{"count": "many"}')
    return [engine.run(Pipeline([Step("x", Says(text), processing=block, config=ONCE)]), "go").run_id for text in texts]


def budgets(engine):
    dear = Pipeline([Step("dear", spend, config=ONCE)])
    return [engine.run(dear, "go", limits=UsageLimits(total_cost_usd_limit=0.1)).run_id]


def models(engine):
    return [engine.run(Pipeline([Step("x", make_agent_async(TestModel(custom_output_text="fine")))]), "go").run_id]


def endings(engine):
    run = engine.enqueue(Pipeline([Step("x", same)]), "go")
    engine.store.request_cancel(run, "never mind")
    engine.drain()
    late = engine.enqueue(Pipeline([Step("x", same)]), "go", deadline=engine.now - 1)
    engine.drain()
    return [run, late]


@pytest.fixture(scope="module")
def told():
    """The names that these scenarios tell."""
    names = set()
    for scenario in (control_flow, caches, people, aros, budgets, models, endings):
        with LocalEngine() as engine:
            for run in scenario(engine):
                names |= {event.name for event in engine.story(run)}
    return names


def documented():
    rows = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("| `")]
    return {name for row in rows if len(row) == 4 for name in re.findall(r"`([^`]+)`", row[0])}


def test_every_documented_event_is_told(told):
    assert documented() - told == ELSEWHERE.keys()


@pytest.mark.parametrize(("name", "file"), ELSEWHERE.items())
def test_what_is_told_elsewhere_is_asserted_there(name, file):
    [found] = TESTS.rglob(file)
    assert f'"{name}"' in found.read_text(encoding="utf-8")
