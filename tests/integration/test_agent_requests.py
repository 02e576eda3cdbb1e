"""What factory-made agents send, byte by byte, with the real `openai` client; and FSD-11's four cases with them (M-033…M-036)."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models import Model
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from flujo_client import Pipeline, Step, StepConfig
from flujo_client.plan.plan import Backoff
from flujo_worker.agents import BaseAgent, make_agent_async, make_templated_agent_async
from flujo_worker.agents.models import model_for
from flujo_worker.testing import LocalEngine
from tests.support.openai_server import OpenAIServer, Said

CHAT, RESPONSES = "openai-chat:gpt-4o", "openai:gpt-5-mini"
AT_ONCE = Backoff(base_s=0)


class Shop(BaseModel):
    city: str = "Rome"
    visits: int = 0


class Left(BaseModel):
    c: "Left | Right | str"


class Right(BaseModel):
    c: "Left | Right | str"


class Counting:
    """A user's agent around one of ours: it takes the context, and changes it."""

    def __init__(self, agent):
        self.agent = agent

    async def run(self, data, *, context):
        context.visits += 1
        return (await self.agent.run(data, context=context)).output


class Open:
    """A user's agent that takes whatever there is."""

    async def run(self, data, **rest):
        rest["context"].visits += 1
        return [(await make_agent_async(CHAT).run(data)).output, sorted(rest)]


@pytest.fixture
def server(monkeypatch):
    with OpenAIServer(["fine"]) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        yield server


@pytest.fixture
def run(server):
    """Run one step; its result, and the data of the events of a name."""
    with LocalEngine() as engine:

        def run(agent, value="go", *, told="", **config):
            step = Step("ask", agent, config=StepConfig(**{"max_retries": 0, "backoff": AT_ONCE, **config}))
            result = engine.run(Pipeline([step], context_model=Shop), value, context={})
            return result, [event.data for event in engine.story(result.run_id) if event.name == told]

        yield run


@pytest.mark.parametrize("model", [CHAT, RESPONSES])
@pytest.mark.parametrize("status", [429, 500, 503])
def test_an_attempt_is_one_request_whatever_the_provider_says(server, run, model, status):
    """C-37, U-32: the provider's client does not try again behind the step's back."""
    server.answers = [Said("slow down", status=status)]
    result, _ = run(make_agent_async(model), max_retries=2)
    assert (len(server.requests), result.step_history[0].attempts) == (3, 3)


def test_a_fallback_model_asks_each_of_its_models_once(server, run):
    """C-37."""
    server.answers = [Said("no", status=500)]

    def make():
        return FallbackModel(CHAT, "openai-chat:gpt-4o-mini")

    result, _ = run(make_agent_async(make))
    assert [body["model"] for body in server.bodies] == ["gpt-4o", "gpt-4o-mini"]
    assert not result.step_history[0].success


def test_the_settings_of_an_agent_of_the_library_do_not_make_the_client_try_again(server, run):
    """C-37."""
    server.answers = [Said("no", status=500)]
    run(Agent(CHAT, model_settings={"max_retries": 2}, defer_model_check=True))
    assert len(server.requests) == 1


def test_a_client_of_the_users_is_asked_once_and_stays_as_it_was(server, run):
    """C-37. Before pydantic-ai 2.58 it is set up not to try again: no setting of a request says so."""
    server.answers = [Said("no", status=500)]
    model = OpenAIChatModel("gpt-4o", provider=OpenAIProvider(base_url=server.url, api_key="none"))
    run(make_agent_async(model))
    kept = 2 if hasattr(Model, "unsupported_settings") else 0
    assert (len(server.requests), model.client.max_retries) == (1, kept)


def test_an_output_that_does_not_fit_is_asked_for_once(server, run):
    """C-37: the library's own output retries are off."""
    server.answers = [Said("no JSON at all")]
    run(make_agent_async(CHAT, output_type=Shop))
    assert len(server.requests) == 1


def test_a_tools_arguments_that_take_too_long_to_validate_are_sent_back_to_the_model(server, run):
    """The model chooses how deep they are: pydantic would list a million errors."""

    def weigh(tree: Left | Right, deep: bool = False) -> str:
        return "weighed"

    deep = '{"tree": ' + '{"c": ' * 18 + "1" + "}" * 19
    server.answers = [Said(arguments=deep), "done"]
    start = time.process_time()
    result, _ = run(make_agent_async(CHAT, tools=[weigh], retries=1))
    assert time.process_time() - start < 2
    assert result.output == "done"
    assert "discriminator" in server.bodies[1]["messages"][-1]["content"]


def test_the_rendered_prompt_and_one_system_message_are_on_the_wire(server, run):
    """M-315, M-316."""
    result, _ = run(BaseAgent(CHAT, "Be brief."), "Say 'hi' & <b>")
    prompt = "Say 'hi' & <b>\n\n## Context\n```json\n" + json.dumps({"city": "Rome", "visits": 0}, indent=2) + "\n```"
    assert server.bodies[0]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": prompt},
    ]
    assert result.output == "fine"


def test_a_templated_system_prompt_is_the_one_system_message(server, run):
    run(make_templated_agent_async(CHAT, "You live in {{ context.city }}."))
    assert [(each["role"], each["content"]) for each in server.bodies[0]["messages"]] == [
        ("system", "You live in Rome."),
        ("user", "go"),
    ]


def test_model_settings_are_on_the_wire(server, run):
    """C-36, U-31."""
    run(make_agent_async(CHAT, top_p=0.5), temperature=0.25, max_tokens=7)
    assert {"temperature": 0.25, "top_p": 0.5, "max_completion_tokens": 7}.items() <= server.bodies[0].items()


def test_gpt_5_runs_on_the_responses_api_and_tells_what_it_does_not_take(server, run):
    """§2.5, C-36: nothing is dropped in silence."""
    _, told = run(make_agent_async(RESPONSES), told="agent.option.dropped", temperature=0.25, top_k=3, max_tokens=70)
    assert server.requests[0].path == "/v1/responses"
    assert server.bodies[0]["max_output_tokens"] == 70
    assert not {"temperature", "top_k"} & server.bodies[0].keys()
    by_class = (
        ["top_k"] if hasattr(Model, "unsupported_settings") else []
    )  # an old pydantic-ai names those of the profile only
    assert told == [{"options": ["temperature", *by_class], "model": "gpt-5-mini"}]


def test_what_a_model_takes_is_not_told_as_dropped(server, run):
    _, told = run(make_agent_async(CHAT), told="agent.option.dropped", temperature=0.25, max_tokens=70)
    assert told == []


def test_what_a_call_spent_is_on_the_step(server, run):
    """SYS-28: tokens and cost."""
    step = run(make_agent_async(CHAT))[0].step_history[0]
    assert step.token_counts == 15
    assert step.cost_usd > 0


def test_one_client_serves_all_models_of_a_provider(server):
    """One HTTP client, with its connections, for each provider."""

    async def made():
        return [await model_for(name) for name in (CHAT, CHAT, "openai-chat:gpt-4o-mini")]

    first, again, other = asyncio.run(made())
    assert first is again
    assert other is not first
    assert other.client is first.client


def test_case_1_a_stateless_agent_is_never_given_the_context(server, run):
    """M-033, M-031, C-25: no TypeError, and not a byte of it on the wire."""
    result, _ = run(make_agent_async(CHAT, "Be brief."))
    assert result.raise_for_status().output == "fine"
    assert b"Rome" not in server.requests[0].raw


def test_case_2_an_agent_with_a_context_parameter_is_given_it(server, run):
    """M-034: it changes it, and what it asks is told what it then holds."""
    result, _ = run(Counting(BaseAgent(CHAT)))
    assert result.final_pipeline_context == Shop(visits=1)
    assert '"visits": 1' in server.bodies[0]["messages"][0]["content"]


def test_case_3_an_agent_with_keywords_finds_the_context_in_them(server, run):
    """M-035."""
    result, _ = run(Open(), temperature=0.5)
    assert result.output == ["fine", ["context", "temperature"]]
    assert result.final_pipeline_context == Shop(visits=1)


def test_case_4_the_agents_own_error_is_what_feedback_names(server, run):
    """M-036, M-026: through the library and the factory."""

    def look():
        """Look."""
        raise ValueError("Internal error")

    server.answers = [Said(arguments="{}")]
    result, _ = run(make_agent_async(CHAT, tools=[look]))
    assert "ValueError: Internal error" in result.step_history[0].feedback
