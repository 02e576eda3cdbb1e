"""Planners that are models, against a provider's API: what they are asked for, what they receive, and what they answer wrongly."""

import json

import pytest
from pydantic import BaseModel

from flujo_client import AgentCommand, Pipeline, make_agentic_loop_pipeline
from flujo_worker.agents import make_agent_async
from tests.support.openai_server import OpenAIServer, Said

MODEL = "openai-chat:gpt-4o"
ASKED = {"type": "run_agent", "agent_name": "upper", "input_data": "bees"}
DONE = {"type": "finish", "final_answer": "BEES!"}
BLUEPRINT = """
agents: {boss: {model: "openai-chat:gpt-4o", system_prompt: "Have the goal written large.", max_retries: 2}}
steps: [{kind: agentic_loop, name: l, planner: agents.boss, registry: {upper: "test_agentic_models:upper"}}]
"""


def upper(text: str) -> str:
    return text.upper()


@pytest.fixture
def server(monkeypatch):
    with OpenAIServer() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        yield server


def looped(**options):
    return make_agentic_loop_pipeline(make_agent_async(MODEL, "Plan.", **options), {"upper": upper})


def of_blueprint():
    return Pipeline.from_yaml_text(BLUEPRINT)


def typed():
    return looped(output_type=AgentCommand)


def said(make, command):
    """What a model says; one with a choice of types is asked for the type's name next to it."""
    names = {"run_agent": "RunAgentCommand", "ask_human": "AskHumanCommand", "finish": "FinishCommand"}
    chosen = {"result": {"kind": names.get(command["type"], "FinishCommand"), "data": command}}
    return json.dumps(chosen if make is typed else command)


class Thought(BaseModel):
    """A command with something besides."""

    thought: str
    type: str
    final_answer: str


def last_message(request):
    """What the user's last message says."""
    return request.body["messages"][-1]["content"]


@pytest.mark.parametrize("make", [of_blueprint, typed, looped])
def test_a_model_plans(server, engine, make):
    """The goal and the turns go out as JSON; commands come back, whatever the agent's output type is."""
    server.answers = [said(make, ASKED), said(make, DONE)]
    result = engine.run(make(), "bees")
    assert result.output == "BEES!"
    first, second = map(json.loads, map(last_message, server.requests))
    assert (first["goal"], first["agents"], first["command_log"]) == ("bees", ["upper"], [])
    assert second["command_log"] == [{"turn": 1, "command": ASKED, "result": "BEES"}]


@pytest.mark.parametrize("make", [of_blueprint, looped])
def test_a_model_is_asked_for_a_command(server, engine, make):
    server.answers = [json.dumps(DONE)]
    engine.run(make(), "bees")
    schema = server.requests[0].body["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["type"]["enum"] == ["run_agent", "ask_human", "finish"]
    assert set(schema["properties"]) == {"type", "agent_name", "input_data", "question", "final_answer"}


@pytest.mark.parametrize("make", [of_blueprint, typed, looped])
@pytest.mark.parametrize("wrong", [{"type": "finish"}, {"type": "stop"}, {"type": "ask_human", "question": ""}])
def test_a_model_is_told_what_is_no_command(server, engine, make, wrong):
    """C-02: it is asked again with what was wrong, and what a command is."""
    server.answers = [said(make, wrong), said(make, DONE)]
    result = engine.run(make(), "bees")
    assert (result.output, len(server.requests)) == ("BEES!", 2)
    assert "Your previous answer was not accepted" in last_message(server.requests[1])


def test_prose_around_a_command_is_read(server, engine):
    server.answers = [Said(f"I think we are done.\n```json\n{json.dumps(DONE)}\n```")]
    assert engine.run(looped(), "bees").output == "BEES!"


def test_a_model_of_ones_own_may_be_a_command(server, engine):
    """It is asked for as it is, and what it has of a command is read."""
    server.answers = [json.dumps(DONE | {"thought": "enough"})]
    assert engine.run(looped(output_type=Thought), "bees").output == "BEES!"
    assert "thought" in server.requests[0].body["response_format"]["json_schema"]["schema"]["properties"]
