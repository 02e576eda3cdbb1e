"""The crawl plan's example does what "use an agent as a tool" says of it: real pages, scripted models, a contract that is held."""

import json
import subprocess

import pytest

from examples import crawl_plan
from flujo_client import Settings
from flujo_client.config.models import Log
from flujo_worker import LocalEngine, PlanGeneratorAgent

SCHEMA = json.loads(PlanGeneratorAgent.input_schema.read_text(encoding="utf-8"))
ITEM = {"agent_name": "discovery_agent", "output": {"anything": [1]}, "description": "Found it"}


@pytest.fixture(scope="module")
def crawl():
    """One run: its result and its events."""
    with LocalEngine(Settings(log=Log(prompts="full"))) as engine:
        run = engine.enqueue(crawl_plan.pipeline, "")
        engine.drain()
        return engine.result(run), engine.story(run)


def output_of(result, name):
    return next(step.output for step in result.step_history if step.name == name)


def test_the_plan_is_made_of_what_the_pages_say(crawl):
    """M-326: from the pages over four agents, the contract and the rendered prompt to the plan."""
    result, _ = crawl
    plan = result.output
    site = plan["start_url"].partition("/")[0]
    assert plan["urls"] == sorted(f"{site}/{name}.html" for name in crawl_plan.MODULES[1:])
    assert plan["name"] == "Generate Crawl Plan"
    assert set(plan["selectors"]) == {"title", "text"}
    assert plan["needs_browser"] is False
    assert not (crawl_plan.SITES / site).exists()


def test_its_runs_are_listed_under_a_name_of_their_own():
    assert crawl_plan.pipeline.name == "crawl-plan"


def test_all_four_agents_are_heard(crawl):
    """M-323: each with its description and its whole output."""
    collected = output_of(crawl[0], "collect")["collected_information"]
    names = ["discovery_agent", "selector_agent", "accessibility_agent", "data_prep_agent"]
    assert [each["agent_name"] for each in collected] == names
    assert all(each["description"] and each["output"] for each in collected)
    assert collected[0]["output"]["dead_links"] > 0


def test_the_main_agent_forgets_reads_and_calls_again(crawl):
    """M-309: the sub-agent is asked once."""
    told = [event for event in crawl[1] if event.name.startswith("agent_tool.")]
    assert [event.name for event in told if event.name != "agent_tool.returned"] == [
        "agent_tool.called",
        "agent_tool.input_invalid",
        "agent_tool.called",
    ]
    assert told[1].data["missing_fields"] == SCHEMA["required"]
    asked = [event for event in crawl[1] if event.name == "agent.prompt" and event.data.get("tool")]
    assert len(asked) == 1


def test_a_page_outside_of_the_site_is_not_read():
    for url in ("../etc/passwd", "/etc/hosts", "crawl-x/../../etc/x.html", "crawl-none/email.html"):
        assert crawl_plan.read_page(url)[:3] in ("400", "404")


def test_pages_are_really_written(tmp_path, monkeypatch):
    monkeypatch.setattr(crawl_plan, "SITES", tmp_path)
    start = crawl_plan.write_site("")["target_url"]
    assert "<title>Python: package email</title>" in crawl_plan.read_page(start)
    assert len(list((tmp_path / start).parent.iterdir())) == len(crawl_plan.MODULES)


def test_a_module_that_is_not_there_fails_the_step(monkeypatch):
    monkeypatch.setattr(crawl_plan.sys, "executable", "/bin/false")
    with pytest.raises(subprocess.CalledProcessError):
        crawl_plan.write_site("")


def judged(**change):
    given = {"target_url": "u", "task_name": "t", "collected_information": [ITEM]}
    return crawl_plan.run_plan_generator.input.judge({**given, **change}).refusal


def test_the_contract_takes_what_it_describes():
    """M-325."""
    assert judged() is None
    assert SCHEMA["required"] == ["target_url", "task_name", "collected_information"]


@pytest.mark.parametrize(
    ("items", "path"),
    [
        ([], []),
        ([{**ITEM, "agent_name": "other_agent"}], [0, "agent_name"]),
        ([{**ITEM, "output": "all of it"}], [0, "output"]),
        ([{"agent_name": "selector_agent", "output": {}}], [0]),
    ],
)
def test_the_contract_refuses_what_is_no_agents_output(items, path):
    """M-323, M-324: nothing, an unknown agent, an output that is not an object, one without a description."""
    assert judged(collected_information=items)["path"] == ["collected_information", *path]


def test_the_contract_tells_a_model_what_is_wanted():
    """M-323, M-324: primary, complete, one for each agent, discovery and selector at least."""
    collected = SCHEMA["properties"]["collected_information"]
    assert collected["items"] == {"$ref": "#/$defs/agentOutput"}
    assert (collected["type"], collected["minItems"]) == ("array", 1)
    for word in ("CRITICAL", "PRIMARY", "complete", "one entry for each", "discovery_agent", "selector_agent"):
        assert word in collected["description"]
    parts = SCHEMA["$defs"]["agentOutput"]["properties"]
    assert "COMPLETE" in parts["output"]["description"]
    assert "Example:" in parts["description"]["description"]
