"""Answers that a provider stopped, and responses that are no answer: over real HTTP, for text and types, with and without AROS."""

import gzip
import json
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel

from flujo_client import Pipeline, Settings, Step, StepConfig
from flujo_client.config.models import Log
from flujo_client.errors import AnswerTooLarge
from flujo_client.sizes import MAX_ANSWER_BYTES
from flujo_worker import LocalEngine, make_agent_async
from flujo_worker.runtime.http_errors import is_outage
from tests.support.openai_server import OpenAIServer, Said


class City(BaseModel):
    name: str
    people: int = 0


WHOLE = '{"name": "Oslo"}'
STOPPED = {"length": "ANSWER_CUT", "content_filter": "ANSWER_FILTERED"}
FORMS: dict[str, dict[str, Any]] = {
    "text": {},
    "type": {"output_type": City},
    "type with AROS": {"output_type": City, "processing": {"aop": "full"}},
    "text with AROS": {"processing": {"aop": "full", "schema": City.model_json_schema()}},
}


def ran(
    said,
    *,
    processing=None,
    retries=0,
    accept=None,
    model=OpenAIChatModel,
    max_tokens=None,
    prompts="preview",
    **options,
):
    """Run one step on what a provider says: its attempts, their events, the run's result, and the requests."""
    with OpenAIServer([said]) as server, LocalEngine(Settings(log=Log(prompts=prompts))) as engine:
        asks = model("gpt-4o", provider=server.provider())
        config = StepConfig(max_retries=retries, accept_finish_reasons=accept, max_tokens=max_tokens)
        step = Step("ask", make_agent_async(asks, "Answer.", **options), config=config, processing=processing)
        run = engine.enqueue(Pipeline([step]), "Which city?")
        engine.drain()
        return engine.history(run), engine.story(run), engine.result(run), server.requests


def answer(form, reason):
    """A typed agent without AROS is answered by a call of its output tool."""
    is_called = form == "type"
    text = WHOLE if form != "text" else "The contract ends on 31 Dec"
    return Said(arguments=text, finish_reason=reason) if is_called else Said(text, finish_reason=reason)


def spent(story):
    return sum(event.data["output_tokens"] for event in story if event.name == "agent.usage")


@pytest.mark.parametrize("reason", STOPPED)
@pytest.mark.parametrize("form", FORMS)
def test_an_answer_that_the_provider_stopped_fails_by_name(form, reason):
    [attempt], story, result, _ = ran(answer(form, reason), max_tokens=9, **FORMS[form])
    assert (result.status, attempt.fault.code, attempt.fault.retryable) == ("failed", STOPPED[reason], True)
    assert f"`{reason}`" in attempt.fault.message
    assert f'accept_finish_reasons=["{reason}"]' in attempt.fault.suggestion
    [cut] = [event for event in story if event.name == "output.cut"]
    assert cut.level == "warning"
    assert cut.data.items() >= {"finish_reason": reason, "max_tokens": 9}.items()
    [answered] = [event.data for event in story if event.name == "agent.response"]
    assert answered["finish_reason"] == reason
    assert spent(story) == 5, "it was paid for"


@pytest.mark.parametrize("reason", STOPPED)
@pytest.mark.parametrize("form", FORMS)
def test_a_step_may_accept_it(form, reason):
    _, story, result, _ = ran(answer(form, reason), accept=[reason], **FORMS[form])
    assert result.status == "completed"
    assert [event.data["finish_reason"] for event in story if event.name in ("output.cut", "agent.response")] == [
        reason
    ] * 2


def test_what_it_accepts_is_only_what_it_names():
    [attempt], *_ = ran(answer("text", "content_filter"), accept=["length"])
    assert attempt.fault.code == "ANSWER_FILTERED"


def test_a_refusal_is_told_in_the_model_s_own_words():
    message = {"role": "assistant", "content": None, "refusal": "I cannot help with that."}
    whole = {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    [attempt], *_ = ran(Said(body=json.dumps({**whole, "choices": [choice]}).encode()))
    assert attempt.fault.code == "ANSWER_FILTERED"
    assert attempt.fault.message == "the model refused to answer: 'I cannot help with that.'"


def test_an_unknown_finish_reason_is_refused_when_the_step_is_made():
    with pytest.raises(ValueError, match="accept_finish_reasons"):
        StepConfig(accept_finish_reasons=["stop"])


def test_a_cut_answer_that_is_accepted_and_does_not_fit_is_called_cut():
    """It is not completed (aros rule 9)."""
    [attempt], *_ = ran(Said('{"name": "Os', finish_reason="length"), accept=["length"], **FORMS["type with AROS"])
    assert (attempt.fault.code, "[cut]" in attempt.fault.message or "max_tokens" in attempt.fault.suggestion) == (
        "AGENT_IO_VALIDATION",
        True,
    )


def test_the_responses_api_says_it_in_its_own_words():
    [attempt], *_ = ran(answer("text", "length"), model=OpenAIResponsesModel)
    assert attempt.fault.code == "ANSWER_CUT"


def test_the_next_attempt_is_told_that_the_answer_was_cut_and_not_that_it_was_filtered():
    for reason, is_told in (("length", True), ("content_filter", False)):
        *_, requests = ran(answer("text", reason), retries=1)
        assert (b"cut off at the token limit" in requests[1].raw) is is_told
        assert (requests[0].raw == requests[1].raw) is not is_told


@pytest.mark.parametrize("prompts", ["preview", "off"])
def test_the_finish_reason_of_a_good_answer_is_in_the_trace(prompts):
    _, story, *_ = ran(Said("fine"), prompts=prompts)
    [told] = [event.data for event in story if event.name == "agent.response"]
    assert told == {"finish_reason": "stop"} | ({"response_preview": "fine"} if prompts == "preview" else {})


def chat(message, finish="stop", **rest):
    choices = [{"index": 0, "finish_reason": finish, "message": {"role": "assistant", **message}}]
    used = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    tree = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": choices, "usage": used}
    return json.dumps({**tree, **rest}).encode()


CALL = {"id": "1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
SAYS_NOTHING = {
    "empty": (chat({"content": ""}), "ANSWER_EMPTY", "an empty answer (finish reason `stop`, 1 output tokens)"),
    "thinking": (chat({"content": "<think>Oslo?</think>"}), "ANSWER_EMPTY", "only thinking and no answer"),
    "unknown tool": (
        chat({"content": None, "tool_calls": [CALL]}, "tool_calls"),
        "UNKNOWN_TOOL_CALLED",
        "called the tool 'look_up', which it was not offered (offered: none)",
    ),
}


@pytest.mark.parametrize(("body", "code", "words"), SAYS_NOTHING.values(), ids=SAYS_NOTHING)
def test_an_answer_with_nothing_in_it_is_named(body, code, words):
    [attempt], story, result, _ = ran(Said(body=body))
    assert (attempt.fault.code, attempt.fault.module, attempt.fault.retryable) == (code, "flujo_client.errors", True)
    assert words in attempt.fault.message
    assert attempt.fault.suggestion
    assert spent(story) == 1
    assert result.step_history[0].feedback.startswith("Agent execution failed with ")


NO_ANSWER = {
    "no choices": Said(body=chat({}, choices=[])),
    "choices that are null": Said(body=chat({}, choices=None)),
    "a web page": Said(body=b"<html>502 Bad Gateway</html>"),
    "a web page of that type": Said(body=b"<html>502 Bad Gateway</html>", content_type="text/html"),
    "a body that is cut": Said(body=chat({"content": "The city is Oslo."})[:-60]),
    "another API's answer": Said(body=b'{"detail": "Not Found", "api_key": "sk-proj-abcdefgh12345678"}'),
}


@pytest.mark.parametrize("said", NO_ANSWER.values(), ids=NO_ANSWER)
def test_a_response_that_is_no_answer_is_an_outage(said):
    """It says what came, it is tried again as it was, and breakers count it."""
    attempts, _, _, requests = ran(said, retries=1)
    fault = attempts[0].fault
    assert (fault.code, fault.type_name, fault.module) == (
        "UNREADABLE_RESPONSE",
        "UnreadableResponse",
        "flujo_client.errors",
    )
    assert f"HTTP 200, {said.content_type}, beginning" in fault.message
    assert said.body[:15].decode() in fault.message.replace("\\", "")
    assert "sk-proj" not in fault.message
    assert (len(attempts), fault.retryable, fault.guidance) == (2, True, None)
    assert requests[0].raw == requests[1].raw


@pytest.mark.large
@pytest.mark.parametrize("kind", ["gzip", "identity"])
def test_an_answer_without_end_is_not_read_to_its_end(kind):
    """Nor is it asked for again by the provider's client, or taken for an outage. What is compressed counts decompressed."""
    text = json.dumps({"choices": [], "padding": " " * (MAX_ANSWER_BYTES + 1)}).encode()
    body = gzip.compress(text, 1) if kind == "gzip" else text
    [attempt], story, result, requests = ran(Said(body=body, headers=(("content-encoding", kind),)))
    assert (result.status, attempt.fault.code) == ("failed", "ANSWER_TOO_LARGE")
    assert f"more than {MAX_ANSWER_BYTES} bytes" in attempt.fault.message
    assert len(requests) == 1
    assert not any(event.name.startswith("breaker") for event in story)
    assert not is_outage(AnswerTooLarge("x"), by_library=False)
