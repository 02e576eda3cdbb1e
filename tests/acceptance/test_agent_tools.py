"""The seed's data flow in real processes: a call without its data, the refusal, the corrected call, the rendered prompt (M-326).

What is asserted of models is what went over the wire to them.
"""

import json
from pathlib import Path

import pytest
from agent_tool_pipelines import CONTRACT

from flujo_client.gateway import requests
from flujo_worker.replay.replay import replay
from tests.support.fleet import Site, wait_until
from tests.support.openai_server import OpenAIServer, Said

pytestmark = [pytest.mark.services, pytest.mark.acceptance]

GOLDEN = Path(__file__).parents[1] / "golden" / "prompts" / "data_flow.md"
TASK = "Generate comprehensive crawl plan"
COLLECTED = [
    {
        "agent_name": "discovery_agent",
        "description": "Discovered pagination and article URLs",
        "output": {"pagination_type": "numbered", "max_pages": 10, "article_urls": ["url1", "url2"]},
    },
    {
        "agent_name": "selector_agent",
        "description": "Selector Agent found 2 listing selectors with 95%+ success rate",
        "output": {"listing": {"title": "h2 > a", "next": "a.next"}, "ready": True, "errors": []},
    },
]
GIVEN = {"target_url": "https://example.com", "collected_information": COLLECTED}
FIELDS = ["target_url", "task_name", "collected_information"]


def answer(request):
    """The main model forgets, reads what it receives, and calls again; the plan generator's model plans."""
    *_, last = request.body["messages"]
    if request.body["model"] == "gpt-4o-mini":
        return Said("1. Fetch url1\n2. Fetch url2", usage=(100, 10))
    if last["role"] == "user":
        return Said(arguments=json.dumps({"task": TASK}))
    told = json.loads(last["content"])
    if told["success"]:
        return Said(str(told["output"]))
    return Said(arguments=json.dumps({"task": TASK, **GIVEN}))


def sign(request):
    """Calls its tool, and answers with what that gave."""
    *_, last = request.body["messages"]
    if last["role"] == "user":
        return Said(arguments=json.dumps({"task": "Sign it", "target_url": "u"}))
    return Said(json.loads(last["content"])["output"])


@pytest.fixture(scope="module")
def model():
    with OpenAIServer(
        lambda request: (sign if "signed" in str(request.body["messages"][0]) else answer)(request)
    ) as it:
        yield it


@pytest.fixture(scope="module")
def site(services, tmp_path_factory, model):
    with Site(services, tmp_path_factory.mktemp("site"), worker={"lease_s": 30.0}) as site:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OPENAI_BASE_URL", model.url)
            patch.setenv("OPENAI_API_KEY", "none")
            site.workers(1)
        yield site


@pytest.fixture(scope="module")
def flow(site, model):
    """One run of the whole flow: the run, its result, and what was asked of the models."""
    first = len(model.requests)
    run = site.client.enqueue("agent_tool_pipelines:plans", "Make a plan.", context={})
    return run, run.result(timeout=60), model.bodies[first:]


def test_the_flow_ends_with_the_plan(flow):
    """M-309, M-326: three turns of the calling model, one call of the sub-agent, one attempt."""
    _, result, bodies = flow
    assert result.success, result
    assert result.output == "1. Fetch url1\n2. Fetch url2"
    assert [body["model"] for body in bodies] == ["gpt-4o", "gpt-4o", "gpt-4o-mini", "gpt-4o"]
    assert result.step_history[0].attempts == 1


def test_the_calling_model_is_offered_the_contract(flow):
    """M-311, M-312, M-313, M-323, M-324: on the wire."""
    [tool] = flow[2][0]["tools"]
    contract = json.loads(CONTRACT.read_text(encoding="utf-8"))
    assert tool["function"]["name"] == "run_plan_generator_agent"
    assert all(name in tool["function"]["description"] for name in FIELDS)
    offered = tool["function"]["parameters"]
    assert offered["required"] == ["task"]
    assert {name: offered["properties"][name]["description"] for name in FIELDS} == {
        name: contract["properties"][name]["description"] for name in FIELDS
    }
    assert offered["properties"]["collected_information"]["items"] == {"$ref": "#/$defs/agentOutput"}
    assert offered["properties"]["context"]["additionalProperties"] is True
    item, wanted = (schema["$defs"]["agentOutput"] for schema in (offered, contract))
    assert (item["required"], item["properties"]["agent_name"]) == (
        wanted["required"],
        wanted["properties"]["agent_name"],
    )
    assert item["properties"]["output"]["additionalProperties"] is True


def test_the_calling_model_reads_what_it_left_out(flow):
    """M-306: the refusal on the wire."""
    told = json.loads(flow[2][1]["messages"][-1]["content"])
    assert (told["success"], told["error"]) == (False, "Input contract validation failed")
    assert (told["required_fields"], told["missing_fields"], told["provided_fields"]) == (FIELDS, FIELDS, [])
    assert told["hint"] == f"Please provide all required fields: {', '.join(FIELDS)}"


def test_the_sub_agents_model_gets_the_rendered_prompt(flow):
    """M-300, M-315, M-316, M-319, M-320: one system and one user message, and the latter is the golden one."""
    system, user = flow[2][2]["messages"]
    assert (system["role"], system["content"]) == ("system", "Write a crawl plan.")
    assert user["role"] == "user"
    assert user["content"].rstrip("\n") == GOLDEN.read_text(encoding="utf-8").rstrip("\n")


def test_the_run_tells_what_happened_and_what_it_cost(flow):
    """M-306, M-323, M-327, M-328: read back from Postgres."""
    run, result, _ = flow
    story = [event for event in run.events() if event.name.startswith(("agent_tool.", "agent.usage"))]
    names = [event.name.removeprefix("agent_tool.") for event in story]
    assert names == ["called", "input_invalid", "returned", "called", "agent.usage", "returned", "agent.usage"]
    assert {event.data["tool_call"] for event in story[:3]} == {1}
    assert {event.data["tool_call"] for event in story[3:6]} == {2}
    assert story[0].data["input_contract"] == story[3].data["input_contract"]
    assert (story[4].data["call"], story[6].data["call"]) == ("run_plan_generator_agent", "agent")
    assert result.total_tokens == 3 * 15 + 110
    assert "target_url" not in result.final_pipeline_context.model_dump()


def path_of(span, known):
    above = known.get(span["parent_span_id"])
    here = (span["kind"], span["name"], span["status"])
    return (*(path_of(above, known) if above else ()), here)


def paths(node, above=()):
    here = (*above, (node.kind, node.name, node.status))
    return [here, *(path for child in node.children for path in paths(child, here))]


def test_the_calls_are_spans_in_sql_as_in_the_tree(site, flow):
    """M-291, M-327: with what they spent, and why one was refused."""
    run = flow[0]
    known = {row["span_id"]: row for row in site.rows("SELECT * FROM flujo_spans WHERE run_id = %(run)s", run=run.id)}
    assert sorted(path_of(each, known) for each in known.values()) == sorted(paths(run.trace()))
    refused, called = (known[f"{run.id}::main:1#{number}"]["attributes"] for number in (1, 2))
    assert (bool(refused["feedback"]), refused["success"]) == (True, False)
    assert (called["flujo.agent"], called["flujo.budget.actual_tokens"]) == ("plan_generator_agent", 110)


def test_a_person_answers_a_sub_agent(site, model):
    """M-327: the run pauses; the answer is the sub-agent's, and its caller continues with it."""
    first = len(model.requests)
    run = site.client.enqueue("agent_tool_pipelines:signed", "Have it signed.")
    wait_until(lambda: run.status() == "paused")
    [asked] = run.approvals()
    assert (asked.message, asked.step) == ("Sign it for u?", "main")
    run.resume("signed by ana", actor="ana")
    assert run.result(timeout=60).output == "SIGNED BY ANA"
    assert len(model.requests) - first == 3
    ask = site.client.ask
    again = replay(ask(requests.recording(run.id)), ask(requests.notices(run.id)), ask(requests.scopes(run.id)), [])
    assert again.difference is None
