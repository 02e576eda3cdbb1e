"""What an attempt reserves of which its step says nothing: by its model's price, its prompt, and what it may answer (M-044, M-435)."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import RequestUsage

from flujo_client import LoopStep, Pipeline, PipelineContext, Step, StepConfig, UsageLimits
from flujo_client.config.manager import Settings
from flujo_client.config.models import Cost
from flujo_client.contract.outcome import Usage
from flujo_worker.agents import BaseAgent, make_agent_async, make_templated_agent_async
from flujo_worker.agents.answer import AgentAnswer
from flujo_worker.attempts import budget
from flujo_worker.attempts.budget import estimated, facts_of
from flujo_worker.domain.budget import BYTES_PER_TOKEN, Learned
from flujo_worker.testing import LocalEngine
from tests.support.priced_model import PricedModel

MODELS = [
    "openai:gpt-5.2",
    "openai-responses:gpt-5-mini",
    "openai:gpt-4.1",
    "anthropic:claude-opus-4-5",
    "anthropic:claude-sonnet-4-5",
    "anthropic:claude-haiku-4-5",
    "google-gla:gemini-3-pro-preview",
    "google-gla:gemini-2.5-flash",
]
TEXT = " ".join(str(number) for number in range(1000))
LIMITS = UsageLimits(total_cost_usd_limit=1000, total_tokens_limit=10**9)
HUNDRED = StepConfig(max_tokens=100)


def listed_price(model, read, written):
    provider, _, name = model.partition(":")
    usage = RequestUsage(input_tokens=read, output_tokens=written)
    return float(ModelResponse([], usage=usage, model_name=name, provider_name=provider).cost().total_price)


def tokens_of(text):
    return math.ceil(len(text.encode()) / BYTES_PER_TOKEN)


def reserved(pipeline, data="in", *, settings=None, **rest):
    """What each attempt at a step of one run has reserved: US dollars and tokens."""
    with LocalEngine(Settings.model_validate(settings or {})) as engine:
        result = engine.run(pipeline, data, limits=LIMITS, **rest)
        tries = [each for each in engine.history(result.run_id) if each.kind == "step"]
    return [(each.estimate_cost_usd, each.estimate_tokens) for each in tries]


def asking(model="openai:gpt-5.2", **options):
    return make_agent_async(PricedModel(model), **options)


@pytest.mark.parametrize("model", MODELS)
def test_a_model_that_has_a_price_reserves_it_for_prompt_and_output(model):
    """M-044: instructions and prompt in, `max_tokens` out."""
    agent = make_agent_async(model, "Be short.")
    found = estimated(facts_of(agent), 3000, Cost(), max_tokens=400, known=None)
    assert found.expected.tokens == 1003 + 400
    assert found.expected.cost_usd == pytest.approx(listed_price(model, 1003, 400))
    assert found.expected.cost_usd > 0
    assert found.unpriced == ()


@pytest.mark.parametrize(
    ("options", "config", "output"),
    [
        ({}, None, 1000),
        ({"max_tokens": 70}, None, 70),
        ({"model_settings": {"max_tokens": 80}}, None, 80),
        ({"max_tokens": 70}, HUNDRED, 100),
    ],
    ids=["nothing known", "the agent's own", "in its settings", "the step's before it"],
)
def test_the_output_is_what_may_be_answered(options, config, output):
    step = Step("a", asking(**options), config=config or StepConfig())
    [(usd, tokens)] = reserved(Pipeline([step]), "x" * 300)
    read = tokens_of('"' + "x" * 300 + '"')
    assert (tokens, usd) == (read + output, pytest.approx(listed_price("openai:gpt-5.2", read, output)))


def test_a_project_says_what_an_output_of_unknown_length_reserves():
    [(_, tokens)] = reserved(Pipeline([Step("a", asking())]), "x", settings={"cost": {"default_output_tokens": 30}})
    assert tokens == tokens_of('"x"') + 30


@pytest.mark.parametrize(
    ("max_tokens", "known", "tokens"),
    [
        (None, Learned(output_tokens=60, requests=1), 100 + 60),
        (50, Learned(output_tokens=60, requests=1), 100 + 50),
        (50, Learned(output_tokens=60, requests=3), 3 * (100 + 50)),
        (None, Learned(output_tokens=60, requests=3), 3 * 100 + 60),
    ],
    ids=["its usual length", "a bound goes before", "each request is bounded", "each request has the prompt"],
)
def test_earlier_attempts_tell_output_and_requests(max_tokens, known, tokens):
    """An agent with tools asks its model several times in one attempt."""
    found = estimated(facts_of(asking()), 300, Cost(), max_tokens=max_tokens, known=known)
    assert found.expected.tokens == tokens


def test_earlier_attempts_at_the_step_are_known_without_a_setting():
    """M-044: that step's history goes before the default, from the attempt after it was read."""

    class Now:
        def submit(self, call, *args):
            call(*args)

    body = Pipeline([Step("call", asking())])
    loop = LoopStep("loop", loop_body_pipeline=body, exit_condition_callable=lambda *_: False, max_loops=6)
    pipeline = Pipeline([loop])
    with LocalEngine(Settings()) as engine:
        engine.attempts.claims._history._threads = Now()
        engine.run(pipeline, "in")
        result = engine.run(pipeline, "in", limits=LIMITS)
        asked = {each.estimate_tokens for each in engine.history(result.run_id) if each.kind == "step"}
    assert asked == {tokens_of('"in"') + PricedModel.WRITES, tokens_of(f'"{PricedModel.SAYS}"') + PricedModel.WRITES}


class Brief(PipelineContext):
    text: str = ""


@pytest.mark.parametrize(
    "step",
    [
        lambda: Step("a", asking(), input="Sum up: {{ context.text }}", config=HUNDRED),
        lambda: Step("a", make_templated_agent_async(PricedModel(), "Know: {{ context.text }}"), config=HUNDRED),
        lambda: Step("a", BaseAgent(PricedModel()), config=HUNDRED),
    ],
    ids=["a step's template", "a system prompt's template", "an agent's template"],
)
@pytest.mark.parametrize("settings", [{}, {"limits": {"snapshot_inline_bytes": 100}}], ids=["inline", "by reference"])
def test_what_a_template_makes_of_the_context_is_counted(step, settings):
    """M-044: as it is rendered, before anyone is asked."""
    pipeline = Pipeline([step()], context_model=Brief)
    [(_, tokens)] = reserved(pipeline, "in", context=Brief(text=TEXT), settings=settings)
    assert tokens_of(TEXT) + 100 < tokens < tokens_of(TEXT) + 200


def test_an_input_that_travels_by_reference_is_counted_and_read_once(monkeypatch):
    with LocalEngine(Settings(limits={"snapshot_inline_bytes": 100})) as engine:
        reads, fetch = [], engine.stores.blobs.fetch
        monkeypatch.setattr(engine.stores.blobs, "fetch", lambda wanted: reads.append(wanted) or fetch(wanted))
        result = engine.run(Pipeline([Step("a", asking(), config=HUNDRED)]), TEXT, limits=LIMITS)
        [attempt] = engine.history(result.run_id)
    assert (attempt.estimate_tokens, result.success, len(reads)) == (tokens_of(f'"{TEXT}"') + 100, True, 1)


def test_a_conversation_so_far_is_counted():
    """M-044: each turn reserves more than the one before it."""
    body = Pipeline([Step("talk", asking(), config=HUNDRED)])
    loop = LoopStep(
        "loop", loop_body_pipeline=body, exit_condition_callable=lambda *_: False, max_loops=3, conversation=True
    )
    asked = [tokens for _, tokens in reserved(Pipeline([loop], context_model=PipelineContext), "in")]
    assert len(asked) == 3
    assert asked[0] < asked[1] < asked[2]


def test_of_models_that_stand_in_for_each_other_the_dearest_counts():
    both = make_agent_async(FallbackModel(PricedModel("google-gla:gemini-2.5-flash"), PricedModel("openai:gpt-5.2")))
    found = estimated(facts_of(both), 300, Cost(), max_tokens=100, known=None)
    assert found.expected.cost_usd == pytest.approx(listed_price("openai:gpt-5.2", 100, 100))


def test_a_projects_own_price_goes_before_the_listed_one():
    own = {"openai": {"gpt-5.2": {"prompt_tokens_per_1k": 1.0, "completion_tokens_per_1k": 2.0}}}
    found = estimated(facts_of(asking()), 3000, Cost(providers=own), max_tokens=1000, known=None)
    assert found.expected.cost_usd == 3.0


def test_a_model_without_a_price_reserves_tokens_and_says_so_once(monkeypatch, caplog):
    """M-044: as an event of the first run that meets it in a process, and in the log."""
    monkeypatch.setattr(budget, "_unpriced", set())
    pipeline = Pipeline([Step("a", asking("acme:own"), config=HUNDRED)])
    with LocalEngine() as engine:
        results = [engine.run(pipeline, "in", limits=LIMITS) for _ in range(2)]
        told = [
            each.data for run in results for each in engine.story(run.run_id) if each.name == "flujo.budget.unpriced"
        ]
        [attempt] = engine.history(results[1].run_id)
    tokens = tokens_of('"in"') + 100
    assert told == [{"model": "acme.own", "tokens": tokens}]
    assert (attempt.estimate_cost_usd, attempt.estimate_tokens) == (0.0, tokens)


@pytest.mark.parametrize(
    "agent",
    [make_agent_async(TestModel()), make_agent_async("local:mock"), make_agent_async("test")],
    ids=["an object", "our own", "by name"],
)
def test_a_model_that_no_one_bills_reserves_its_tokens(agent):
    found = estimated(facts_of(agent), 300, Cost(), max_tokens=100, known=None)
    assert (found.expected.tokens, found.expected.cost_usd) == (200, 0.0)


def test_an_agent_that_names_no_model_reserves_what_its_step_says():
    async def plain(data):
        return AgentAnswer(data, Usage(6, 4, 1, 0.1))

    assert reserved(Pipeline([Step("a", plain)])) == [(0.0, 0)]
    assert reserved(Pipeline([Step("a", plain, config=HUNDRED)])) == [(0.0, 100)]


def test_an_agent_that_cannot_say_what_it_is_reserves_nothing():
    class Broken:
        @property
        def model(self):
            raise RuntimeError("no model today")

    assert estimated(facts_of(Broken()), 300, Cost(), max_tokens=None, known=None).expected.tokens == 0
    assert facts_of(SimpleNamespace(model="gpt-5.2")).models


@pytest.mark.parametrize("model", MODELS)
def test_a_call_that_does_not_fit_is_not_made(engine, model):
    """M-044, M-435: one attempt fits, a second does not, though the limit is not reached yet."""
    price = listed_price(model, tokens_of('"in"'), 100)
    agent = asking(model)
    pipeline = Pipeline(
        [Step("a", agent, config=StepConfig(max_tokens=100, max_retries=0)), Step("b", agent, config=HUNDRED)]
    )
    result = engine.run(pipeline, "in", limits=UsageLimits(total_cost_usd_limit=price * 1.05))
    assert (result.run_status, result.error.category, agent.model.asked) == ("failed", "limit", 1)
    assert 0 < result.total_cost_usd <= price
