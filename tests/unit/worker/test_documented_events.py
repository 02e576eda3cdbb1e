"""Every event of `docs/reference/events.md` is emitted by some scenario (U-21): one of these, or a test that asserts it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
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
    WaitForEvent,
)
from flujo_client.contract.outcome import Usage
from flujo_client.pipeline.router import DynamicParallelRouterStep
from flujo_worker.agents.answer import AgentAnswer
from flujo_worker.agents.factory import make_agent_async
from flujo_worker.testing import LocalEngine
from tests.support.memory import asked

TESTS = Path(__file__).parents[2]
PAGE = (TESTS.parent / "docs/reference/events.md").read_text(encoding="utf-8")
ONCE, BEHIND = StepConfig(max_retries=0), StepConfig(execution_mode="background")
SCHEMA = {"type": "object", "required": ["count"], "properties": {"count": {"type": "integer"}}}
STORE, SYSTEM, QUARANTINE, OTHER = (
    "test_store_events.py",
    "test_system_events.py",
    "test_quarantine.py",
    "test_other_code.py",
)
BACKGROUND = "test_background_steps.py"
WAITING = {"wait_until"}
"""What fails unless its condition comes true."""
TOLD_BY = {
    "test_agent_tool.py::test_what_an_agent_says_it_cannot_do_is_told": ["agent_tool.called", "agent_tool.raised"],
    "test_agent_tool.py::test_an_agent_that_forgets_reads_why_and_calls_again": [
        "agent_tool.input_invalid",
        "agent_tool.returned",
    ],
    "test_agent_tool.py::test_each_call_is_told_with_its_contracts": ["agent_tool.dropped"],
    "test_agent_tool.py::test_a_refused_output_is_told": ["agent_tool.output_invalid"],
    "test_agent_tool.py::test_a_steps_aros_reads_the_agents_output": ["agent.schema", "aros.soe.enabled"],
    "test_agent_tool.py::test_a_run_that_passes_its_limit_by_a_sub_agent_fails": ["flujo.budget.reserved"],
    "test_agent_tool.py::test_an_outage_of_a_sub_agents_provider_opens_its_own_breaker": ["flujo.breaker.opened"],
    "test_rates_in_engine.py::test_when_most_calls_are_refused_everybody_waits_as_long_as_the_provider_asks": [
        "flujo.rate.slowed"
    ],
    "../../integration/test_unit_bounds.py::test_a_request_that_differs_from_the_recorded_one_says_what_changed_first": [
        "unit.changed",
        "unit.unasked",
    ],
    "../../integration/test_unit_bounds.py::test_answers_that_a_failover_has_lost_are_asked_for_once_more": [
        "unit.possibly_done"
    ],
    "test_durable_waits.py::test_a_sleep_ends_the_attempt_and_the_next_one_goes_on_after_it": ["flujo.waiting"],
    "test_durable_batches.py::test_what_a_batch_does_not_answer_is_asked_live": [
        "batch.submitted",
        "batch.ended",
        "batch.live",
    ],
    "test_durable_batches.py::test_a_batch_that_the_provider_refuses_is_asked_live": ["batch.failed"],
    "test_breakers_in_engine.py::test_after_the_threshold_no_one_calls_until_the_recovery_is_over": [
        "flujo.breaker.waiting",
        "flujo.breaker.half_open",
        "flujo.breaker.closed",
    ],
    "test_rates_in_engine.py::test_no_minute_has_more_requests_than_allowed_and_a_wait_is_no_attempt": [
        "flujo.rate.waiting"
    ],
    "test_step_limits.py::test_what_finds_no_place_waits_and_says_for_what": ["flujo.limit.waiting"],
    "test_prompt_events.py::test_a_rendered_system_prompt_is_told_with_its_variables": ["agent.system.vars"],
    "test_prompt_events.py::test_the_calls_of_tools_are_told_with_arguments_result_and_time": ["agent.tool"],
    "test_prompt_events.py::test_each_request_of_a_call_with_tools_has_its_tokens": ["agent.request"],
    "test_limits_in_engine.py::test_each_auxiliary_call_has_a_share_of_the_reservation_and_a_line_of_what_it_cost": [
        "agent.option.dropped",
        "aros.reasoning.precheck.pass",
    ],
    "test_aros_step.py::test_a_failed_precheck_tells_and_continues": [
        "aros.reasoning.precheck.fail",
        "reasoning.validation",
    ],
    "test_aros_step.py::test_without_a_plan_the_precheck_is_skipped_and_the_prompt_is_as_it_was": [
        "aros.reasoning.precheck.skipped"
    ],
    "test_aros_step.py::test_an_enforced_grammar_judges_the_text_as_it_came": [
        "grammar.applied",
        "grammar.enforce.pass",
        "grammar.enforce.fail",
        "grammar.enforce.skipped",
    ],
    "test_hooks.py::test_an_abort_at_a_question_ends_the_run": ["hook.failed"],
    "test_default_reservations.py::test_a_model_without_a_price_reserves_tokens_and_says_so_once": [
        "flujo.budget.unpriced"
    ],
    "test_hooks.py::test_a_call_that_ends_every_worker_is_given_up": ["hook.lost"],
    "test_step_output.py::test_what_a_step_prints_is_an_event": ["step.printed"],
    "test_sleeps.py::test_its_sleep_is_an_event": ["flujo.sleeping"],
    "test_step_output.py::test_logging_keeps_its_level": ["step.logged"],
    "test_step_output.py::test_what_is_printed_is_bounded": ["output.dropped"],
    "test_step_output.py::test_who_blocks_the_loop_is_told_what_to_do": ["step.blocked_loop"],
    "test_left_behind.py::test_an_agent_that_ignores_its_cancellation_fails_with_its_timeout": ["step.left_behind"],
    "test_blueprint_kinds.py::test_a_missing_name_leaves_a_gap_and_is_told": ["template.missing"],
    "test_carrying_on.py::test_what_is_to_come_is_run_as_the_new_code_says": ["run.carried_on"],
    "test_carrying_on.py::test_a_run_waits_for_a_branch_that_runs_under_the_old_code": ["run.waits_for_old_code"],
    "test_context_migrations.py::test_it_is_migrated_once": ["context.migrated"],
    "test_code_changes.py::test_a_conversation_whose_tool_changed_is_warned_of_once": ["code.changed"],
    "test_single_flight.py::test_one_of_equal_calls_goes_to_the_model": ["flujo.cache.waiting"],
    "test_template_events.py::test_resolved_templates_are_told_by_name": ["template.resolved"],
}
"""Tests of this folder that tell what these scenarios do not; they are run here, and what they tell is written down."""
ELSEWHERE = {
    **dict.fromkeys(["attempt.lost", "attempt.sent_again", "run.enqueued"], STORE),
    **dict.fromkeys(
        ["worker.log", "worker.started", "worker.stopped", "events.dropped"],
        SYSTEM,
    ),
    **dict.fromkeys(["attempt.isolated", "attempt.crashed"], QUARANTINE),
    **dict.fromkeys(["run.parked", "run.unparked"], OTHER),
    **dict.fromkeys(["background.stale", "background.started_again"], BACKGROUND),
    "batch.found": "test_provider_batches.py",
    "step.progress": "test_streamed_runs.py",
    "guard.edited": "test_store_model_guards.py",
    "aros.guidance.not_injected": "test_precheck_guidance.py",
    "attempt.waits_for_lock": "test_locked_rows.py",
    "attempt.handed_back": "test_rolling_restarts.py",
    **dict.fromkeys(["attempt.starved", "worker.slowed", "worker.recovered"], "test_starvation.py"),
    "outcome.refused": "test_wrong_version.py",
    "worker.lacks_key": "test_lacking_keys.py",
    "attempt.lacks_module": "test_missing_modules.py",
    "output.cut": "test_response_check.py",
    "run.cancel_requested": "test_trace_endings.py",
    **dict.fromkeys(["run.waiting", "run.admitted"], "test_store_admission.py"),
    "run.unreadable": "test_unreadable_rows.py",
    "task.state": "test_tasks_as_steps.py",
    "template.undefined": "test_prompt_templates.py",
}
"""What only Postgres, several processes or a real connection tells, and the file with the assertion about it."""


class Count(BaseModel):
    count: int


class SendsOn:
    def validate(self, data):
        if data == "other":
            return PluginOutcome(success=True)
        return PluginOutcome(success=False, feedback="not so", redirect_to=other)


def other(data):
    return "other"


def echo(data):
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
        LoopStep("loop", loop_body_pipeline=Pipeline([Step("x", echo)]), exit_condition_callable=lambda *_: True),
        Step.parallel("fan", {"a": Step("a", echo), "b": Step("b", echo)}),
        DynamicParallelRouterStep("route", router_agent=lambda _: ["a"], branches={"a": Step("a", echo)}),
        ImportStep("import", pipeline=Pipeline([Step("c", echo)]), own_run=True),
        Step("later", echo, config=BEHIND),
        Step("redirected", echo, plugins=[SendsOn()]),
        Step("judged", echo, validators=[bool]),
        Step("shaky", break_down, config=StepConfig(max_retries=1), fallback_step=Step("rescue", echo)),
    ]
    run = engine.enqueue(Pipeline(steps), "go")
    engine.drain()
    return [run, engine.fork(run, "shaky")]


def caches(engine):
    cached = Pipeline([Step.cached(Step("x", echo))])
    return [
        engine.run(cached, "go").run_id,
        engine.run(cached, "go").run_id,
        engine.run(cached, Random(7).randbytes(2_000_000).hex()).run_id,
    ]


def people(engine):
    asking = Pipeline([HumanInTheLoopStep("ask", "Well?", expires_s=5.0), Step("x", echo)])
    first, second = engine.enqueue(asking, "go"), engine.enqueue(asking, "go")
    engine.drain()
    engine.answer(first, "yes")
    engine.pass_time(10)
    awaiting = engine.enqueue(Pipeline([WaitForEvent("go")]))
    engine.send(awaiting, "go")
    return [first, second, awaiting]


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
    run = engine.enqueue(Pipeline([Step("x", echo)]), "go")
    asked(engine.stores).request_cancel(run, "never mind")
    engine.drain()
    late = engine.enqueue(Pipeline([Step("x", echo)]), "go", deadline=engine.now - 1)
    engine.drain()
    return [run, late]


@pytest.fixture(scope="module")
def event_names():
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


@pytest.fixture(scope="module")
def told_by_tests(tmp_path_factory):
    """The names that the tests of TOLD_BY tell, run in a separate process."""
    file = tmp_path_factory.mktemp("told") / "names"
    here = Path(__file__).parent
    environment = {**os.environ, "TOLD_EVENTS": str(file), "PYTHONPATH": str(here)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "event_recorder", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [*command, *(str(here / each) for each in TOLD_BY)],
        cwd=TESTS.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return set(file.read_text(encoding="utf-8").split())


def test_every_documented_event_is_told(event_names):
    """U-21, M-052: each has one place where it is told."""
    by_tests = [name for names in TOLD_BY.values() for name in names]
    assert documented() - event_names == {*by_tests, *ELSEWHERE}
    assert len(by_tests) == len(set(by_tests))


@pytest.mark.large
def test_what_other_tests_are_to_tell_they_tell(told_by_tests):
    """U-21: as a fact, not as a word in a file."""
    assert {name for names in TOLD_BY.values() for name in names} - told_by_tests == set()


@pytest.mark.large
def test_no_event_is_told_that_the_page_does_not_have(event_names, told_by_tests):
    """The other way round."""
    assert (event_names | told_by_tests) - documented() == set()


@pytest.mark.parametrize(("name", "file"), ELSEWHERE.items())
def test_what_is_told_elsewhere_is_asserted_there(name, file):
    """In the assertion of a test, or in what its comparison is made of: not in a comment, nor in what it sets up."""
    [found] = TESTS.rglob(file)
    asserted = {
        each.value
        for node in ast.walk(ast.parse(found.read_text(encoding="utf-8")))
        if asserts(node)
        for each in ast.walk(node)
        if isinstance(each, ast.Constant)
    }
    assert name in asserted


def asserts(node):
    """Tell whether a statement fails if what it names does not come: an assertion, a wait, `[told] = …`."""
    if isinstance(node, ast.Assign):
        return isinstance(node.targets[0], ast.List)
    return isinstance(node, ast.Assert) or (isinstance(node, ast.Call) and called(node) in WAITING)


def called(node):
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
