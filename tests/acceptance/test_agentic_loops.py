"""Agentic loops over real workers: a planner's turns outlive the workers, and a question holds none of them."""

import asyncio

import pytest

from flujo_client import Pipeline, run_agentic_loop_pipeline
from tests.support.fleet import PATIENCE_S, wait_until

pytestmark = pytest.mark.acceptance

BLUEPRINT = """
name: research
steps:
  - kind: agentic_loop
    name: research
    planner: agentic_pipelines:plan
    registry: {large: "agentic_pipelines:large", gated: "blueprint_pipelines:wait_at_gate"}
"""
TURNS = [(1, "run_agent", "BEES"), (2, "run_agent", "BEES"), (3, "ask_human", "yes"), (4, "finish", ["BEES", "yes"])]


def turns(result):
    return [(each.turn, each.command.type, each.result) for each in result.final_pipeline_context.command_log]


def test_in_python_and_in_yaml_it_outlives_its_workers_and_waits_for_a_person(site):
    """Issue 8, SYS-17: workers are killed in the second turn of both, and each turn is written down once."""
    site.standing()
    runs = [
        site.client.enqueue(pipeline, "bees")
        for pipeline in ("agentic_pipelines:research", Pipeline.from_yaml_text(BLUEPRINT))
    ]
    for run in runs:
        site.wait_for_execution(run.id, "gated")
    site.dismiss()
    site.standing()
    for run in runs:
        site.open_gate(run.id)
    for run in runs:
        wait_until(lambda run=run: run.status() == "paused", what=site.log)
        assert [each.message for each in run.approvals()] == ["Is BEES right?"]
        run.resume("yes")
    results = [run.result(timeout=PATIENCE_S) for run in runs]
    assert [(each.output, turns(each)) for each in results] == [(["BEES", "yes"], TURNS)] * 2, site.log()
    steps = [[event["data"]["step"] for event in site.events(run.id, "step.succeeded")] for run in runs]
    assert steps[0] == steps[1]
    assert steps[0].count("record") == 4


def test_it_runs_to_its_question_and_on_from_there(site):
    """Requirements §2.1: `run_agentic_loop_pipeline`, over workers that run already."""
    site.standing()

    async def ask_and_answer():
        first = asyncio.create_task(run_agentic_loop_pipeline(REFERENCE, "bees", settings=site.settings))
        await asyncio.to_thread(wait_until, lambda: site.client.list_runs(pipeline="research", status="running"))
        [run] = site.client.list_runs(pipeline="research", status="running")
        site.open_gate(run.id)
        asked = await first
        return asked, await run_agentic_loop_pipeline(
            REFERENCE, resume_from=asked, human_input="yes", settings=site.settings
        )

    asked, result = asyncio.run(ask_and_answer())
    assert (asked.run_status, [each.message for each in asked.signals]) == ("paused", ["Is BEES right?"])
    assert (result.run_status, result.output) == ("succeeded", ["BEES", "yes"]), site.log()


REFERENCE = "agentic_pipelines:research"
