"""The complaint of the how-to is settled as its page says: with the model it names, against a server on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from openai_server import OpenAIServer

from examples import complaint
from flujo_client import AskHumanCommand, FinishCommand, Pipeline, RunAgentCommand
from flujo_worker.testing import LocalEngine

ROOT = Path(__file__).parents[2]
FILE = ROOT / "examples/blueprints/complaint.yaml"
PAGE = (ROOT / "docs/how-to/let-an-agent-plan.md").read_text()
GOAL = "The kettle of order 17 leaks."
LETTER = "Dear customer,\nyou get 30 back"
SAID = [
    RunAgentCommand(agent_name="orders", input_data="17"),
    AskHumanCommand(question="May I give 30 back?"),
    RunAgentCommand(agent_name="letters", input_data=["you get 30 back"]),
    FinishCommand(final_answer=LETTER),
]


@pytest.fixture
def server(monkeypatch):
    with OpenAIServer() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        yield server


def settled(pipeline):
    with LocalEngine() as engine:
        run = engine.enqueue(pipeline, GOAL)
        engine.drain()
        assert [each.message for each in engine.approvals(run)] == ["May I give 30 back?"]
        return engine.answer(run, "yes")


def test_a_complaint_is_settled_in_python(server):
    """Requirements §2.5."""
    server.answers = [json.dumps({"result": {"kind": type(each).__name__, "data": each.model_dump()}}) for each in SAID]
    result = settled(complaint.pipeline)

    assert result.output == LETTER
    assert complaint.turns(result) == [
        "1. run_agent: {'item': 'kettle', 'price': 30}",
        "2. ask_human: yes",
        f"3. run_agent: {LETTER}",
        f"4. finish: {LETTER}",
    ]


def test_a_complaint_is_settled_in_yaml(server):
    """Requirements §2.6."""
    server.answers = [each.model_dump_json() for each in SAID]
    result = settled(Pipeline.from_yaml_file(FILE))

    assert result.output == f"{LETTER}\n\nYours, the desk"
    assert len(result.final_pipeline_context.command_log) == 4


def test_what_a_planner_gets_is_as_the_page_shows(server):
    shown = PAGE.partition("```text\n")[2].partition("```")[0]
    server.answers = [each.model_dump_json() for each in SAID]
    settled(Pipeline.from_yaml_file(FILE))

    messages = server.requests[1].body["input"]
    assert json.loads(messages[-1]["content"]) == json.loads(shown)


def test_the_page_shows_the_file():
    assert f"```yaml\n# examples/blueprints/complaint.yaml\n{FILE.read_text()}```" in PAGE
