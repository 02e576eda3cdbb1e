"""Recorded answers of models: asked once over real HTTP, then answered by a readable file."""

import json

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.providers.openai import OpenAIProvider

from flujo_client import ConfigManager, Pipeline, Settings, Step, StepConfig
from flujo_client.errors import ConfigurationError, NonRetryableError, SettingsError
from flujo_worker.agents import make_agent_async
from flujo_worker.testing import Cassette
from tests.support.openai_server import OpenAIServer, Said

ONCE = StepConfig(max_retries=0)


class Price(BaseModel):
    amount: float


def recording(path):
    return Cassette(path, Settings(cassettes={"mode": "record"}))


def ask(cassette, prompt, model=None, **agent):
    """Ask once through a cassette."""
    return Agent(cassette.model(model or TestModel(custom_output_text="Hello.")), **agent).run_sync(prompt)


def test_a_run_over_http_is_recorded_and_replayed_without_the_server(flujo_engine, tmp_path):
    file = tmp_path / "cassettes" / "price.json"
    with OpenAIServer([Said(arguments='{"amount": 7.5}')]) as server:
        model = OpenAIChatModel("gpt-4o-mini", provider=OpenAIProvider(base_url=server.url, api_key="x"))
        agent = make_agent_async(model, "Price it.", Price)
        pipeline = Pipeline([Step("price", agent, config=ONCE)])
        with recording(file).override(agent):
            assert flujo_engine.run(pipeline, "a hive").raise_for_status().output == Price(amount=7.5)
        assert len(server.requests) == 1
    with Cassette(file).override(agent):
        again = flujo_engine.run(pipeline, "a hive").raise_for_status()
    assert (again.output, again.total_tokens) == (Price(amount=7.5), 15)
    [entry] = json.loads(file.read_text())["recordings"]
    assert entry["request"]["model"] == "openai:gpt-4o-mini"


def test_an_agent_named_by_its_model_needs_no_key_to_be_replayed(flujo_engine, tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    agent = make_agent_async("openai:gpt-4o-mini", "Be brief.")
    with Cassette(tmp_path / "none.json").override(agent):
        result = flujo_engine.run(Pipeline([Step("ask", agent)]), "hi")
    assert (result.error.code, result.step_history[0].attempts) == ("NOT_RECORDED", 1)
    assert "it has no recordings" in result.error.message


def test_a_miss_shows_the_nearest_recording(tmp_path):
    cassette = recording(tmp_path / "c.json")
    ask(cassette, "What does a hive cost?")
    ask(cassette, "Where do bees live in winter?", system_prompt="Be brief.")
    with pytest.raises(NonRetryableError, match="the nearest is number 1") as missed:
        ask(Cassette(tmp_path / "c.json"), "What does a bee cost?")
    lines = str(missed.value).splitlines()
    assert any(line.startswith("-") and "What does a hive cost?" in line for line in lines)
    assert any(line.startswith("+") and "What does a bee cost?" in line for line in lines)
    assert not any("winter" in line for line in lines)


def test_the_same_request_gets_its_answers_in_their_order_and_then_the_last(tmp_path):
    with OpenAIServer(["one", "two"]) as server:
        model = OpenAIChatModel("gpt-4o-mini", provider=OpenAIProvider(base_url=server.url, api_key="x"))
        cassette = recording(tmp_path / "c.json")
        assert [ask(cassette, "next", model).output for _ in range(2)] == ["one", "two"]
    cassette = Cassette(tmp_path / "c.json")
    assert [ask(cassette, "next", model).output for _ in range(3)] == ["one", "two", "two"]


def test_calls_of_tools_are_recorded_by_number(tmp_path):
    """Their ids are random, and are not part of the key."""
    cassette = recording(tmp_path / "c.json")
    tools = {"tools": [len_of]}
    first = Agent(cassette.model(TestModel()), **tools).run_sync("count").output
    assert Agent(Cassette(tmp_path / "c.json").model(TestModel()), **tools).run_sync("count").output == first


def len_of(word: str) -> int:
    return len(word)


def test_a_fallback_over_several_models_is_recorded_as_one(tmp_path):
    several = FallbackModel(TestModel(custom_output_text="Hello."), TestModel())
    ask(recording(tmp_path / "c.json"), "hi", several)
    assert ask(Cassette(tmp_path / "c.json"), "hi", several).output == "Hello."


def test_secrets_are_not_written(tmp_path):
    ask(recording(tmp_path / "c.json"), "my key is sk-abcdefghijklmnop0123")
    assert "sk-abcdef" not in (tmp_path / "c.json").read_text()
    assert ask(Cassette(tmp_path / "c.json"), "my key is sk-abcdefghijklmnop0123").output == "Hello."


def test_a_mode_may_ask_without_recording(tmp_path):
    cassette = Cassette(tmp_path / "c.json", Settings(cassettes={"mode": "none"}))
    assert ask(cassette, "hi").output == "Hello."
    assert not (tmp_path / "c.json").exists()


def test_a_file_that_is_no_cassette_is_refused(tmp_path):
    (tmp_path / "c.json").write_text('{"recordings": [{}]}')
    with pytest.raises(ConfigurationError, match=r"c\.json' is not a cassette"):
        Cassette(tmp_path / "c.json")


PRODUCTION = {
    "FLUJO_MODE": "production",
    "FLUJO_DATABASE_URL": "postgresql://localhost/x",
    "FLUJO_BROKER_URL": "redis://localhost",
    "FLUJO_ALLOWED_IMPORTS": "shop",
    "FLUJO_SIGNING_KEYS": "a:" + "s" * 40,
}


def test_production_uses_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = ConfigManager(environ=PRODUCTION).settings()
    with pytest.raises(ConfigurationError, match="must not answer in production"):
        Cassette(tmp_path / "c.json", settings)
    with pytest.raises(SettingsError, match=r"remove `cassettes\.mode`"):
        ConfigManager(environ=PRODUCTION | {"FLUJO_CASSETTES_MODE": "record"}).settings()


def test_the_fixture_has_a_file_for_each_test(flujo_cassette, request):
    assert flujo_cassette.path.relative_to(request.path.parent).as_posix() == (
        "cassettes/test_cassettes/test_the_fixture_has_a_file_for_each_test.json"
    )
    assert flujo_cassette.mode == "replay"
