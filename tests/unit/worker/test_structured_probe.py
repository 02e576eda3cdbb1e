"""What a model can do, told by its id or its object: no network, no key."""

import pytest
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.providers.openai import OpenAIProvider

from flujo_worker.agents import make_agent_async
from flujo_worker.agents.structured import Capability, capability_of


@pytest.fixture(autouse=True)
def no_keys(monkeypatch):
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("model", "json_schema", "json_object"),
    [
        ("openai:gpt-5", True, True),
        ("openai:gpt-4o", True, True),
        ("openai:gpt-4o-mini", True, True),
        ("openai-chat:gpt-4o-mini", True, True),
        ("anthropic:claude-sonnet-4-5", True, False),
        ("anthropic:claude-3-5-haiku-latest", False, False),
        ("google:gemini-2.5-pro", True, True),
        ("deepseek:deepseek-chat", False, True),
        ("nobody:nothing", False, False),
        ("gateway/nobody:nothing", False, False),
        ("", False, False),
    ],
)
def test_an_id_is_enough(model, json_schema, json_object):
    """M-062, M-074: also for a provider whose SDK is not installed."""
    told = capability_of(model)
    assert (told.json_schema, told.json_object) == (json_schema, json_object)


def test_it_names_provider_and_model():
    """M-062."""
    assert capability_of("openai:gpt-5") == Capability(
        json_schema=True, json_object=True, provider="openai", model="gpt-5"
    )


def test_an_id_is_looked_up_once():
    """M-062: cached per worker."""
    assert capability_of("openai:gpt-4.1") is capability_of("openai:gpt-4.1")


def test_a_models_own_profile_speaks_for_it():
    """M-062: what its author says of it goes before what its family can do."""
    provider = OpenAIProvider(api_key="none")
    told = capability_of(OpenAIChatModel("old", provider=provider, profile={"supports_json_schema_output": False}))
    assert told == Capability(json_schema=False, json_object=True, provider="openai", model="old")


@pytest.mark.parametrize(
    "model", [None, TestModel(), FallbackModel(TestModel(), TestModel()), WrapperModel(FallbackModel(TestModel()))]
)
def test_who_cannot_be_told_can_do_nothing(model):
    """M-061."""
    told = capability_of(model)
    assert (told.json_schema, told.json_object) == (False, False)


def test_a_function_model_can_do_both():
    told = capability_of(FunctionModel(lambda *_: None))
    assert (told.json_schema, told.json_object) == (True, True)


@pytest.mark.parametrize("name", ["gpt-5", "gpt-5-mini", "gpt-4o"])
def test_the_factory_runs_openai_ids_on_the_responses_api(monkeypatch, name):
    """M-071: a class check without network."""
    from pydantic_ai.models import infer_model

    monkeypatch.setenv("OPENAI_API_KEY", "none")
    assert isinstance(infer_model(make_agent_async(f"openai:{name}").agent.model), OpenAIResponsesModel)


@pytest.mark.parametrize(
    ("names", "can"),
    [
        (
            "gpt-3.5-turbo gpt-3.5-turbo-0125 gpt-35-turbo gpt-4 gpt-4-0613 gpt-4-32k gpt-4-turbo gpt-4-turbo-2024-04-09",
            False,
        ),
        (
            "gpt-4-1106-preview gpt-4-vision-preview gpt-4o-2024-05-13 o1-mini o1-preview ft:gpt-3.5-turbo-0125:us::id",
            False,
        ),
        ("gpt-4o gpt-4o-mini gpt-4o-2024-08-06 gpt-4.1 gpt-4.1-nano gpt-4.5-preview gpt-5 gpt-5-mini o1 o3-mini", True),
        ("ft:gpt-4o-2024-08-06:us::id chatgpt-4o-latest", True),
    ],
)
def test_openais_models_from_before_structured_outputs_are_known(names, can):
    """pydantic-ai's profiles call all of them able."""
    for name in names.split():
        told = capability_of(f"openai-chat:{name}")
        assert (told.json_schema, told.json_object) == (can, can), name
