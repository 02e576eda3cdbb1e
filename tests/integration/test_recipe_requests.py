"""What the default pipeline of ready-made agents sends, with the real `openai` client (requirements §2.1, §2.5)."""

import json

import pytest

from flujo_client import make_default_pipeline
from flujo_worker import LocalEngine, agents
from tests.support.openai_server import OpenAIServer, Said

TASK, ITEMS = "a poem about bees", ["it rhymes", "it is short"]


def checklist(*passed):
    pairs = zip(ITEMS, passed or (None, None), strict=True)
    return Said(arguments=json.dumps({"items": [{"description": each, "passed": done} for each, done in pairs]}))


@pytest.fixture
def server(monkeypatch, tmp_path):
    """In a project whose settings name their own models."""
    kinds = ("review", "solution", "validator", "reflection")
    models = "\n".join(f'default_{kind}_model = "openai-chat:{kind}-1"' for kind in kinds)
    (tmp_path / "flujo.toml").write_text(f"[agents]\n{models}\n")
    monkeypatch.chdir(tmp_path)
    answers = [checklist(), "roses", checklist(True, False), "shorter", "bees", checklist(True, True)]
    with OpenAIServer(answers) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        yield server


@pytest.fixture
def solved(server):
    """The result of it; the requests are the server's."""
    makers = agents.make_review_agent, agents.make_solution_agent, agents.make_validator_agent
    pipeline = make_default_pipeline(*(make() for make in makers), agents.make_reflection_agent())
    with LocalEngine() as engine:
        return engine.run(pipeline, TASK)


def test_the_agents_are_asked_in_turn_until_all_is_passed(server, solved):
    assert [body["model"] for body in server.bodies] == [
        "review-1", "solution-1", "validator-1", "reflection-1", "solution-1", "validator-1"
    ]  # fmt: skip
    assert (solved.output.solution, solved.output.score) == ("bees", 1.0)
    assert solved.total_tokens == 6 * 15


def test_each_is_told_its_own_prompt_once(server, solved):
    for body in server.bodies:
        roles = [each["role"] for each in body["messages"]]
        assert roles == ["system", "user"]
    said = {body["model"]: body["messages"][0]["content"] for body in server.bodies}
    made = {
        agent.model.partition(":")[2]: agent.system_prompt
        for agent in (agents.make_review_agent(), agents.make_solution_agent())
    }
    assert made.items() <= said.items()
    assert len(set(said.values())) == 4


def test_what_is_asked_is_the_task_and_what_came_of_it(server, solved):
    review, first, judged, thought, second, _ = [body["messages"][-1]["content"] for body in server.bodies]
    assert review == TASK
    assert json.loads(first) == {"task": TASK, "checklist": ITEMS}
    assert json.loads(judged) == {"task": TASK, "solution": "roses", "checklist": ITEMS}
    refused = {"solution": "roses", "failed": [{"description": "it is short", "feedback": None}]}
    assert json.loads(thought) == {"task": TASK, "checklist": ITEMS, **refused, "reflection": None}
    assert json.loads(second) == {"task": TASK, "checklist": ITEMS, **refused, "reflection": "shorter"}


def test_checklists_are_asked_for_as_tools_and_texts_as_texts(server, solved):
    review, solution = server.bodies[:2]
    (tool,) = review["tools"]
    item = next(iter(tool["function"]["parameters"]["$defs"].values()))
    assert set(item["properties"]) == {"description", "passed", "feedback"}
    assert "tools" not in solution
