"""Structured output on the wire: the real `openai` client inside pydantic-ai, and a server that records every byte it receives (SYS-22)."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime

import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, PromptedOutput, StructuredDict, TextOutput, ToolOutput
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from structlog.testing import capture_logs

from flujo_client.contract.outcome import Usage
from flujo_client.errors import AgentIOValidationError, AnswerCut
from flujo_client.serial import digest
from flujo_worker.agents import make_agent_async
from flujo_worker.agents.call import call_agent, callee_of
from flujo_worker.agents.shaping import Shaping
from flujo_worker.runtime.attempt_run import AttemptRun
from flujo_worker.runtime.faults import root_cause
from tests.support.openai_server import OpenAIServer, Said
from tests.support.performing import performing


class Fruit(BaseModel):
    name: str
    count: int


class Root(BaseModel):
    is_edible: bool


class Sale(BaseModel):
    at: datetime
    format: str


KIWI = '{"name": "kiwi", "count": 3}'
OWN = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
MODELS = {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}


class Reader:
    """A `read` that keeps what it was given; what it gives back is `answer(raw)`."""

    def __init__(self, answer=lambda raw: raw):
        self.answer, self.calls = answer, []

    async def __call__(self, raw, schema, origin):
        self.calls.append((raw, schema, origin.finish_reason))
        return self.answer(raw)


SHAPING = Shaping("auto", "review_step", None, shadow=False, read=Reader())


@pytest.fixture
def server():
    with OpenAIServer([KIWI]) as server:
        yield server


@pytest.fixture(scope="module")
def threads():
    with ThreadPoolExecutor(1) as threads:
        yield threads


def provider(server):
    # Without certificates: reading them takes longer than the test.
    client = AsyncOpenAI(base_url=server.url, api_key="none", http_client=DefaultAsyncHttpxClient(verify=False))
    return OpenAIProvider(openai_client=client)


def model(server, api="chat", name="gpt-4o", **settings):
    return MODELS[api](name, provider=provider(server), settings=settings or None)


def agent(server, output_type=Fruit, api="chat", **options):
    return Agent(model(server, api), output_type=output_type, **{"retries": 0, **options})


def shaping(mode="auto", schema=None, read=None, **more):
    return replace(SHAPING, structured_output=mode, schema=schema, read=read or Reader(), **more)


@pytest.fixture(scope="module")
def loop():
    with asyncio.Runner() as loop:
        yield loop


@pytest.fixture
def fresh_loop():
    """A loop that has asked no provider yet: they are made from the environment."""
    with asyncio.Runner() as loop:
        yield loop


@pytest.fixture
def call(threads, loop):
    """Call an agent once: its answer, and what was told."""
    return caller(threads, loop)


def caller(threads, loop):
    run = AttemptRun()

    async def recorded(*args, **options):
        with performing(run):
            return await call_agent(callee_of(args[0]), *args[1:], **options)

    def call(agent, shaping=None, **options):
        with capture_logs() as told:
            answer = loop.run(recorded(agent, "one kiwi?", options, threads=threads, shaping=shaping))
        return answer, [{key: value for key, value in each.items() if key != "log_level"} for each in told]

    call.run = run
    return call


def test_chat_completions_carries_the_type_as_response_format(server, call):
    """M-060, M-070, M-048: the outgoing request itself is structured, under the step's name, without the output tool."""
    call(agent(server), shaping())
    sent = server.bodies[0]["response_format"]
    assert sent["type"] == "json_schema"
    assert sent["json_schema"]["name"] == "review_step"
    assert sent["json_schema"]["schema"]["properties"] == {"name": {"type": "string"}, "count": {"type": "integer"}}
    assert "tools" not in server.bodies[0]


def test_the_responses_api_carries_the_type_as_text_format(server, call):
    """M-060, M-070."""
    call(agent(server, api="responses"), shaping("openai_json"))
    sent = server.bodies[0]["text"]["format"]
    assert (sent["type"], sent["name"]) == ("json_schema", "review_step")
    assert sent["schema"]["required"] == ["name", "count"]


@pytest.mark.parametrize("mode", ["auto", "openai_json"])
def test_what_is_told_is_what_was_sent(server, call, mode):
    """M-066, M-067, M-068, M-155, M-156, M-190, M-200."""
    _, told = call(agent(server), shaping(mode))
    schema_hash = digest(Fruit.model_json_schema())
    assert told == [
        {"event": "aros.soe.enabled", "mode": mode, "form": "json_schema", "schema_hash": schema_hash},
        {"event": "grammar.applied", "mode": "openai_json", "form": "json_schema", "schema_hash": schema_hash},
    ]


@pytest.mark.parametrize("name", ["gpt-5", "gpt-4o", "gpt-4o-mini"])
def test_auto_is_applied_for_the_openai_models_by_their_ids(server, threads, fresh_loop, monkeypatch, name):
    """M-064, M-071: an `openai:` id runs on the Responses API."""
    call = caller(threads, fresh_loop)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    answer, told = call(make_agent_async(f"openai:{name}", output_type=Fruit), shaping())
    assert [each["event"] for each in told] == ["aros.soe.enabled", "grammar.applied"]
    assert server.requests[0].path == "/v1/responses"
    assert server.bodies[0]["text"]["format"]["type"] == "json_schema"
    assert (answer.output, answer.model) == (Fruit(name="kiwi", count=3), name)


def test_the_schema_hash_stays_from_attempt_to_attempt(server, call):
    """M-067."""
    ours = make_agent_async(lambda: model(server), output_type=Fruit)
    _, first = call(ours, shaping())
    _, second = call(ours, shaping(), guidance="count them again")
    assert "count them again" in server.bodies[1]["messages"][0]["content"]
    assert first == second
    assert server.bodies[0]["response_format"] == server.bodies[1]["response_format"]


@pytest.mark.parametrize("output_type", [Fruit, str, list[int], ToolOutput(Fruit)])
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_off_sends_the_same_bytes_as_no_shaping(server, call, output_type, api):
    """`off`: nothing told, nothing changed on the wire."""
    server.answers = lambda request: Said(arguments=_answer(output_type)) if "tools" in request.body else Said("yes")
    ours = agent(server, output_type, api)
    plain, _ = call(ours, temperature=0.5)
    shaped, told = call(ours, shaping("off"), temperature=0.5)
    first, second = server.requests
    assert first.raw == second.raw
    assert (plain.output, plain.usage, told) == (shaped.output, shaped.usage, [])


def _answer(output_type):
    return '{"response": [1]}' if output_type == list[int] else KIWI


def test_an_agent_of_the_factory_is_shaped_too(server, call):
    """M-060: and behind a wrapper that says what it wraps (C-25), without the wrapper knowing."""

    class Wrapper:
        def __init__(self, inner):
            self.__flujo_target__ = inner

        async def run(self, data, **rest):
            return await self.__flujo_target__.run(data, **rest)

    ours = make_agent_async(lambda: model(server), output_type=Fruit)
    answer, told = call(Wrapper(ours), shaping())
    assert server.bodies[0]["response_format"]["type"] == "json_schema"
    assert (answer.is_shaped, len(told)) == (True, 2)


def test_the_steps_own_schema_is_sent_for_a_text_agent_and_a_dictionary_comes_back(server, call):
    """M-072."""
    server.answers = ['{"ok": true}']
    read = Reader()
    answer, told = call(agent(server, str), shaping(schema=OWN, read=read))
    assert server.bodies[0]["response_format"]["json_schema"]["schema"] == OWN
    assert told[0]["schema_hash"] == digest(OWN)
    assert (answer.output, answer.is_shaped) == ({"ok": True}, True)
    assert read.calls == [('{"ok": true}', OWN, "stop")]


def test_the_steps_own_schema_is_sent_for_a_typed_agent_and_its_type_comes_back(server, call):
    """M-072: the schema supplies what is asked for; the type still judges."""
    own = {"type": "object", "properties": {"name": {"enum": ["kiwi"]}, "count": {"$ref": "#/$defs/few"}}}
    own |= {"$defs": {"few": {"type": "integer", "maximum": 9}}, "required": ["name", "count"]}
    read = Reader()
    answer, told = call(agent(server), shaping(schema=own, read=read))
    sent = server.bodies[0]["response_format"]["json_schema"]["schema"]
    assert sent["properties"] == {"name": {"enum": ["kiwi"]}, "count": {"type": "integer", "maximum": 9}}
    assert (answer.output, read.calls[0][1], told[1]["schema_hash"]) == (Fruit(name="kiwi", count=3), own, digest(own))


def test_an_object_that_takes_any_member_is_not_closed_on_the_way(server, call):
    """Strict mode would have the model answer `{}` where the schema declares no members."""
    server.answers = ['{"facts": {"a": 1}}']
    own = {"type": "object", "properties": {"facts": {"type": "object"}}, "required": ["facts"]}
    answer, _ = call(agent(server, str), shaping(schema=own))
    sent = server.bodies[0]["response_format"]["json_schema"]
    assert (sent["strict"], sent["schema"]["properties"]["facts"]["additionalProperties"]) == (False, True)
    assert answer.output == {"facts": {"a": 1}}


def test_a_list_is_asked_for_and_read_under_the_librarys_key(server, call):
    """The step's schema is of the list; the wrapper's is put around it."""
    server.answers = ['{"response": [1, 2]}']
    own, read = {"type": "array", "items": {"type": "integer", "maximum": 5}}, Reader()
    answer, _ = call(agent(server, list[int]), shaping(schema=own, read=read))
    sent = server.bodies[0]["response_format"]["json_schema"]["schema"]
    assert sent["properties"]["response"] == own
    assert read.calls[0][1] == {"type": "object", "properties": {"response": own}, "required": ["response"]}
    assert answer.output == [1, 2]


def test_a_union_keeps_the_librarys_envelope(server, call):
    """A step's schema knows nothing of `kind` and `data`: it stays out of the way."""
    server.answers = ['{"result": {"kind": "Root", "data": {"is_edible": true}}}']
    read = Reader()
    answer, told = call(agent(server, [Fruit, Root]), shaping(schema=OWN, read=read))
    assert answer.output == Root(is_edible=True)
    assert "result" in server.bodies[0]["response_format"]["json_schema"]["schema"]["properties"]
    assert read.calls[0][1]["required"] == ["result"]
    assert [each["event"] for each in told] == ["aros.soe.enabled", "grammar.applied"]


def test_an_optional_type_may_be_nothing(server, call):
    server.answers = ['{"result": {"kind": "None", "data": {"response": null}}}']
    answer, _ = call(agent(server, Fruit | None), shaping())
    assert (answer.output, answer.is_shaped) == (None, True)


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_openai_json_holds_a_text_agent_to_json(server, call, api):
    """M-060: no schema is known, so JSON-object mode; any object is welcome."""
    server.answers = ['{"any": [1]}']
    answer, told = call(agent(server, str, api), shaping("openai_json"))
    body = server.bodies[0]
    sent = body["response_format"] if api == "chat" else body["text"]["format"]
    assert sent == {"type": "json_object"}
    assert '"additionalProperties": true' in str(body["messages" if api == "chat" else "input"][0]["content"])
    assert {(each["form"], each["schema_hash"]) for each in told} == {("json_object", digest({"type": "object"}))}
    assert len(told) == 2
    assert answer.output == {"any": [1]}


def test_a_model_without_json_schema_is_held_to_json(server, call):
    """M-060: the profile decides; the schema goes into the prompt."""
    old = OpenAIChatModel("old", provider=provider(server), profile={"supports_json_schema_output": False})
    answer, told = call(Agent(old, output_type=Fruit, retries=0), shaping())
    assert server.bodies[0]["response_format"] == {"type": "json_object"}
    assert told[1]["form"] == "json_object"
    assert answer.output == Fruit(name="kiwi", count=3)


def test_auto_leaves_a_text_agent_alone(server, call):
    """No one expects JSON: nothing is told, nothing is changed, nothing is read."""
    server.answers = ["a kiwi"]
    read = Reader()
    answer, told = call(agent(server, str), shaping(read=read))
    assert set(server.bodies[0]) == {"model", "messages", "stream"}
    assert (answer.output, answer.is_shaped, told, read.calls) == ("a kiwi", False, [], [])


def to_upper(text: str) -> str:
    return text.upper()


def to_fruit(name: str, count: int) -> Fruit:
    return Fruit(name=name, count=count)


@pytest.mark.parametrize(
    ("output_type", "reason"),
    [
        (NativeOutput(Fruit), "output_marker"),
        (PromptedOutput(Fruit), "output_marker"),
        (ToolOutput(Fruit), "output_marker"),
        (TextOutput(to_upper), "output_marker"),
        (to_fruit, "output_marker"),
        ([Fruit, str], "text_allowed"),
    ],
)
def test_an_authors_own_way_of_asking_stays(server, call, output_type, reason):
    """M-061, M-068, M-157: the request is the one that the author wanted."""
    server.answers = lambda request: Said(arguments='{"name": "kiwi", "count": 3}') if "tools" in request.body else KIWI
    ours = agent(server, output_type)
    _, told = call(ours, shaping())
    call(ours)
    assert told == [{"event": "aros.soe.skipped", "mode": "auto", "reason": reason}]
    assert server.requests[0].raw == server.requests[1].raw


@pytest.mark.parametrize("place", ["agent", "model", "run"])
@pytest.mark.parametrize("name", ["response_format", "text"])
def test_a_format_of_the_callers_own_is_left_alone(server, call, place, name):
    """M-061, M-157."""
    server.answers = [Said(arguments=KIWI)]
    settings = {"extra_body": {name: {"type": "text"}}}
    ours = Agent(
        model(server, **(settings if place == "model" else {})),
        output_type=Fruit,
        retries=0,
        model_settings=settings if place == "agent" else None,
    )
    _, told = call(ours, shaping(), **(settings if place == "run" else {}))
    assert told == [{"event": "aros.soe.skipped", "mode": "auto", "reason": "caller_response_format"}]
    assert server.bodies[0][name] == {"type": "text"}
    assert "tools" in server.bodies[0]


def test_it_is_not_told_as_applied_when_settings_made_late_put_another_format_in(server, call):
    """U-06: such settings are known only when the request is made."""
    _, told = call(
        agent(server, model_settings=lambda _: {"extra_body": {"response_format": {"type": "text"}}}), shaping()
    )
    assert server.bodies[0]["response_format"] == {"type": "text"}
    assert [each["event"] for each in told] == ["aros.soe.enabled"]


def test_output_validators_keep_the_agents_own_type(server, call):
    """M-061: pydantic-ai refuses another type beside them, before anything is sent."""
    server.answers = [Said(arguments=KIWI)]
    ours = agent(server)
    ours.output_validator(lambda output: output)
    answer, told = call(ours, shaping())
    assert told == [{"event": "aros.soe.skipped", "mode": "auto", "reason": "output_validators"}]
    assert (len(server.requests), answer.output) == (1, Fruit(name="kiwi", count=3))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array"},
        {
            "type": "object",
            "properties": {"n": {"$ref": "#/$defs/n"}},
            "$defs": {"n": {"items": {"$ref": "#/$defs/n"}}},
        },
        {"type": "object", "properties": {"n": {"$ref": "#"}}},
    ],
)
def test_a_schema_that_cannot_be_asked_for_is_skipped(server, call, schema):
    """M-061, M-157."""
    server.answers = ["text"]
    answer, told = call(agent(server, str), shaping(schema=schema))
    assert told == [{"event": "aros.soe.skipped", "mode": "auto", "reason": "schema_unsupported"}]
    assert ("response_format" in server.bodies[0], answer.output) == (False, "text")


def test_a_fallback_over_models_cannot_be_told(server, call):
    """M-061: it has no profile of its own."""
    server.answers = [Said(arguments=KIWI)]
    answer, told = call(Agent(FallbackModel(model(server), model(server)), output_type=Fruit, retries=0), shaping())
    assert told == [{"event": "aros.soe.skipped", "mode": "auto", "reason": "unsupported_provider"}]
    assert (answer.output.name, "tools" in server.bodies[0]) == ("kiwi", True)


@pytest.mark.parametrize("mode", ["outlines", "xgrammar"])
def test_experimental_modes_are_told_and_change_nothing(server, call, mode):
    """M-065, M-067, C-09."""
    server.answers = [Said(arguments=KIWI)]
    ours = agent(server)
    _, told = call(ours, shaping(mode))
    call(ours)
    schema_hash = digest(Fruit.model_json_schema())
    assert told == [
        {"event": "grammar.applied", "mode": mode, "schema_hash": schema_hash, "telemetry_only": True},
        {"event": "aros.soe.skipped", "mode": mode, "reason": "experimental"},
    ]
    assert server.requests[0].raw == server.requests[1].raw


def test_a_shadow_changes_neither_request_nor_text_nor_error(server, call):
    """C-41."""
    server.answers = [KIWI]
    ours = agent(server, ToolOutput(Fruit))
    with pytest.raises(UnexpectedModelBehavior):
        call(ours, shaping(shadow=True))
    with pytest.raises(UnexpectedModelBehavior):
        call(ours)
    assert server.requests[0].raw == server.requests[1].raw


def test_a_shadow_is_told(server, call):
    """C-41, M-157."""
    server.answers = [Said(arguments=KIWI)]
    answer, told = call(agent(server), shaping(shadow=True))
    assert told == [{"event": "aros.soe.skipped", "mode": "auto", "reason": "shadow", "shadow": True}]
    assert answer.output == Fruit(name="kiwi", count=3)


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_text_is_taken_for_the_tools_arguments(server, call, api):
    """A model that writes its answer instead of calling the output tool is not asked again."""
    server.answers = [f"Here you are: {KIWI}"]
    read = Reader(lambda raw: raw[raw.index("{") :])
    answer, _ = call(agent(server, ToolOutput(Fruit), api), shaping("off", read=read))
    assert (answer.output, answer.is_shaped) == (Fruit(name="kiwi", count=3), True)
    assert read.calls[0][0] == f"Here you are: {KIWI}"


def test_a_text_for_two_tools_is_no_ones(server, call):
    server.answers = [KIWI]
    read = Reader()
    with pytest.raises(UnexpectedModelBehavior):
        call(agent(server, [ToolOutput(Fruit), ToolOutput(Root)]), shaping("off", read=read))
    assert read.calls == []


def test_the_arguments_of_the_output_tool_are_read(server, call):
    server.answers = [Said(arguments='{"name": "kiwi", "count": "3"}')]
    read = Reader(lambda raw: {**json.loads(raw), "count": 3})
    answer, _ = call(agent(server), shaping("off", read=read))
    assert answer.output == Fruit(name="kiwi", count=3)
    assert read.calls[0][1]["properties"]["count"] == {"type": "integer"}


def test_formats_of_a_python_type_are_pydantics_own_business(server, call):
    """A naive datetime fits its type and no RFC 3339 format; a property called `format` stays."""
    server.answers = ['{"at": "2026-11-22T10:00:00", "format": "email"}']
    read = Reader()
    answer, _ = call(agent(server, Sale), shaping(read=read))
    sent = server.bodies[0]["response_format"]["json_schema"]["schema"]
    assert sent["properties"]["at"]["format"] == "date-time"
    assert read.calls[0][1]["properties"] == {"at": {"type": "string"}, "format": {"type": "string"}}
    assert answer.output.at == datetime(2026, 11, 22, 10)  # noqa: DTZ001 - naive is the point


def test_formats_of_an_authors_own_schema_are_checked(server, call):
    """No one else would: pydantic takes any dictionary for it."""
    own = {"type": "object", "properties": {"at": {"type": "string", "format": "date"}}}
    server.answers, read = ['{"at": "2026-11-22"}'], Reader()
    call(agent(server, StructuredDict(own)), shaping(read=read))
    assert read.calls[0][1]["properties"]["at"]["format"] == "date"


def test_a_run_of_several_requests_is_told_once(server, call):
    """M-066: each request of an agent with tools carries the schema."""
    server.answers = [Said(arguments="{}"), KIWI]
    ours = agent(server)
    ours.tool_plain(lambda: "three", name="count_them")
    answer, told = call(ours, shaping())
    assert [body["response_format"]["type"] for body in server.bodies] == ["json_schema", "json_schema"]
    assert [each["event"] for each in told] == ["aros.soe.enabled", "grammar.applied"]
    assert (answer.output.name, answer.usage.requests) == ("kiwi", 2)


@pytest.mark.parametrize("output_type", [Fruit, ToolOutput(Fruit)])
def test_what_does_not_fit_is_named_by_place_and_booked(server, call, output_type):
    """C-02, C-37: one request, whatever the library's own retries, and what it cost is on the error."""
    server.answers = ['{"name": "kiwi", "count": "many"}']
    with pytest.raises(AgentIOValidationError, match=r'^at /count: expected a valid integer.*found "many"') as caught:
        call(agent(server, output_type, retries=3), shaping())
    assert (caught.value.rule, caught.value.pointer) == ("schema", "/count")
    assert root_cause(caught.value) is caught.value  # pydantic's own text repeats the whole output
    spent = call.run.charge_of(caught.value)
    assert (spent.input_tokens, spent.output_tokens, spent.requests, len(server.requests)) == (10, 5, 1, 1)
    assert spent.cost_usd > 0


@pytest.mark.parametrize("output_type", [Fruit, ToolOutput(Fruit), list[int]])
def test_what_read_refuses_leaves_the_run_as_it_is(server, call, output_type):
    """C-37: the library must not ask again, and the answer was paid for."""
    refused = AgentIOValidationError("no", rule="two-readings", pointer="/a")

    def refuse(_):
        raise refused

    with pytest.raises(AgentIOValidationError) as caught:
        call(agent(server, output_type, retries=3), shaping(read=Reader(refuse)))
    assert caught.value is refused
    assert (call.run.charge_of(caught.value).requests, len(server.requests)) == (1, 1)


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("said", [KIWI, '{"name": "kiwi", "cou'])
def test_an_answer_that_was_cut_is_refused_whether_it_holds_or_not(server, call, said, api):
    """A cut answer may look whole (aros rule 9)."""
    server.answers = [Said(said, finish_reason="length")]
    read = Reader()
    with pytest.raises(AnswerCut, match="`max_tokens` 7"):
        call(agent(server, api=api), shaping(read=read), max_tokens=7)
    assert read.calls == []


def test_an_answer_names_its_model_and_what_it_cost(server, call):
    server.answers = [Said(KIWI, usage=(100, 20))]
    answer, _ = call(agent(server), shaping())
    assert (answer.model, answer.usage) == ("gpt-4o", Usage(100, 20, 1, answer.usage.cost_usd))
    assert answer.usage.cost_usd > 0


def test_what_was_sent_is_told_although_the_provider_refused_it(server, threads, loop):
    """M-155: its error does not hide how it was asked."""
    server.answers = [Said("bad schema", status=400)]
    with capture_logs() as told, pytest.raises(Exception, match="bad schema"):
        loop.run(call_agent(callee_of(agent(server)), "one kiwi?", {}, threads=threads, shaping=shaping()))
    assert "response_format" in server.bodies[0]
    assert [each["event"] for each in told] == ["aros.soe.enabled", "grammar.applied"]
