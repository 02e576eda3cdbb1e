"""What names a unit: digests of what is asked, the same in every process and release, without times, ids, and what a provider says beside."""

import dataclasses
import datetime as dt
import hashlib
import warnings

import pytest
from pydantic import BaseModel
from pydantic_ai.durable_exec import (
    ModelCompactMessagesId,
    ModelRequestId,
    ToolsetCallToolId,
    ToolsetGetToolsId,
)
from pydantic_ai.messages import (
    BinaryContent,
    ImageUrl,
    ModelRequest,
    ModelResponse,
    RetryFeedbackPart,
    RetryInfo,
    RetryPromptPart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestContext, ModelRequestParameters
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import RunContext, ToolDefinition
from pydantic_ai.usage import RequestUsage, RunUsage

from flujo_worker.agents.asked import asked
from flujo_worker.durable.names import FORM

THEN, NOW = (dt.datetime(2026, 1, day, tzinfo=dt.UTC) for day in (1, 2))


class Place(BaseModel):
    name: str
    at: dt.date


def text(at=THEN):
    return [
        ModelRequest(
            [SystemPromptPart("Be brief.", timestamp=at), UserPromptPart("Where?", timestamp=at)],
            instructions=f"It is {at:%H:%M %d}.",
            run_id=f"run-{at}",
            timestamp=at,
        )
    ]


def image(at=THEN):
    content = [
        "What is this?",
        BinaryContent(b"\x89PNG\x00\xff", media_type="image/png"),
        ImageUrl("https://example.com/a.png"),
    ]
    return [ModelRequest([UserPromptPart(content, timestamp=at)])]


def tools(at=THEN):
    response = ModelResponse(
        [
            ThinkingPart("Hm.", signature="s1", provider_name="anthropic"),
            TextPart("I look."),
            ToolCallPart("look", {"place": "Bern", "n": 1}, tool_call_id="c1"),
            ToolCallPart("look", '{"place": "Chur"}', tool_call_id="c2"),
        ],
        usage=RequestUsage(input_tokens=at.day),
        model_name=f"gpt-{at.day}",
        provider_response_id=f"id-{at}",
        timestamp=at,
    )
    returned = [
        ToolReturnPart("look", Place(name="Bern", at=dt.date(2026, 1, 1)), tool_call_id="c1", timestamp=at),
        ToolReturnPart("look", {"raw": b"\xff", "nan": float("nan"), "big": 2**70}, tool_call_id="c2", timestamp=at),
    ]
    return [*text(at), response, ModelRequest(returned, timestamp=at)]


def retried(at=THEN):
    feedback = RetryFeedbackPart("not JSON", retry=RetryInfo(cause="model_retry"), timestamp=at)
    return [*text(at), ModelResponse([TextPart("?")], timestamp=at), ModelRequest([feedback])]


def retried_before(at=THEN):
    """Ask again as pydantic-ai did before 2.68: with an id drawn at random."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        part = RetryPromptPart("not JSON", timestamp=at)
    return [*text(at), ModelResponse([TextPart("?")], timestamp=at), ModelRequest([part])]


PARAMETERS = ModelRequestParameters(
    function_tools=[ToolDefinition(name="look", description="Look.", parameters_json_schema={"type": "object"})]
)
MODEL = ModelRequestId(model_name="gpt-5")
CONTEXT = RunContext(deps=None, model=TestModel(), usage=RunUsage(), tool_call_id="c1")


def request(messages, *, fingerprint="conversation", settings=None, parameters=PARAMETERS):
    inputs = ("flujo", messages, settings, parameters, CONTEXT)
    return asked(MODEL, inputs, fingerprint=fingerprint, is_effect=False, digests={})


def call(arguments, *, is_effect=False, ctx=CONTEXT):
    operation = ToolsetCallToolId("function", toolset_id="<agent>")
    return asked(operation, ("look", arguments, ctx, None), fingerprint="conversation", is_effect=is_effect, digests={})


def compaction():
    context = ModelRequestContext(
        model=TestModel(), messages=text(), model_settings=None, model_request_parameters=PARAMETERS
    )
    inputs = ("flujo", context, "Sum up.", CONTEXT)
    return asked(
        ModelCompactMessagesId(model_name="gpt-5"), inputs, fingerprint="conversation", is_effect=False, digests={}
    )


def discovery():
    inputs = ("files", CONTEXT)
    return asked(
        ToolsetGetToolsId("mcp", toolset_id="files"), inputs, fingerprint="conversation", is_effect=False, digests={}
    )


RECORDED = {
    "text": lambda: request(text()),
    "text, strict": lambda: request(text(), fingerprint="strict", settings={"temperature": 0.5}),
    "an image": lambda: request(image()),
    "tools and thinking": lambda: request(tools()),
    "tools and thinking, strict": lambda: request(tools(), fingerprint="strict"),
    "a retry": lambda: request(retried()),
    "a compaction": compaction,
    "a tool": lambda: call({"place": "Bern", "at": dt.date(2026, 1, 1), "of": Place(name="a", at=dt.date(2026, 1, 1))}),
    "a tool with other values": lambda: call(
        {"raw": b"\xff", "nan": float("nan"), "big": 2**70, "set": {1}, "half": "\ud800"}
    ),
    "an effect": lambda: call({"to": "a@example.com"}, is_effect=True),
    "tools of an MCP server": discovery,
}
PINNED = {
    "text": "ed252a713cc136ee",
    "text, strict": "fabb30e36e76d60f",
    "an image": "77a2df86285d3d1d",
    "tools and thinking": "288a2e149c6ca47a",
    "tools and thinking, strict": "d5b668e35b2ee090",
    "a retry": "8a05d2ac629fc9c9",
    "a compaction": "3fe1e24a2eca0fc5",
    "a tool": "b5d315fda9e22537",
    "a tool with other values": "afdb282fc266c070",
    "an effect": "3f88841244cb1ec4",
    "tools of an MCP server": "e7f5adcc8bd9b212",
}
"""As recorded with form 1. A change here loses every unit on record: raise `FORM` with it."""


def named(data):
    return hashlib.sha256(data).hexdigest()[:16]


def test_the_form_is_the_pinned_one():
    assert FORM == b"1"


@pytest.mark.parametrize("name", RECORDED)
def test_digests_are_as_recorded(name):
    assert named(RECORDED[name]().data) == PINNED[name]


@pytest.mark.parametrize("messages", [text, image, tools, retried, retried_before])
def test_times_ids_and_what_a_provider_says_beside_do_not_count(messages):
    assert request(messages(THEN)).data == request(messages(NOW)).data


def test_instructions_and_system_prompts_count_only_strictly():
    other = text(NOW)
    assert request(text()).data == request(other).data
    assert request(text(), fingerprint="strict").data != request(other, fingerprint="strict").data


def test_tools_and_settings_count_only_strictly():
    worded = dataclasses.replace(PARAMETERS.function_tools[0], description="Look it up.")
    others = (
        {"parameters": dataclasses.replace(PARAMETERS, function_tools=[worded])},
        {"settings": {"temperature": 1.0}},
    )
    for other in others:
        assert request(text()).data == request(text(), **other).data
        assert request(text(), fingerprint="strict").data != request(text(), fingerprint="strict", **other).data


def test_any_change_of_the_conversation_counts():
    assert len({request(each()).data for each in (text, image, tools, retried)}) == 4
    changed = tools()
    changed[1].parts[2].args = {"place": "Bern", "n": 2}
    assert request(changed).data != request(tools()).data


def test_calls_of_one_answer_differ_and_effects_do_not():
    other = dataclasses.replace(CONTEXT, tool_call_id="c2")
    assert call({"x": 1}).data != call({"x": 1}, ctx=other).data
    assert call({"x": 1}, is_effect=True).data == call({"x": 1}, is_effect=True, ctx=other).data


def test_a_value_of_a_class_without_a_form_counts_by_its_class():
    assert call({"x": object()}).data == call({"x": object()}).data
    assert call({"x": object()}).data != call({"x": Place}).data


def test_parts_have_no_text_of_a_prompt_and_are_bounded():
    parts = request([*text(), *[each for _ in range(200) for each in tools()[1:]]], fingerprint="strict").parts
    assert len(parts) == 257
    assert parts[0] == "model: flujo gpt-5"
    assert not any(word in part for part in parts for word in ("Where", "Bern", "brief"))
