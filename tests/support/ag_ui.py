"""What AG-UI's own client asks of a stream, and what it then shows: the rules of `verify.ts` and `apply/default.ts` that our streams touch."""

import json

from ag_ui.core import Event
from pydantic import TypeAdapter

EVENT = TypeAdapter(Event)
OPENS = {
    "TEXT_MESSAGE_START": "text",
    "TOOL_CALL_START": "call",
    "REASONING_START": "span",
    "REASONING_MESSAGE_START": "thought",
}
GOES_ON = {"TEXT_MESSAGE_CONTENT": "text", "TOOL_CALL_ARGS": "call", "REASONING_MESSAGE_CONTENT": "thought"}
ENDS = {
    "TEXT_MESSAGE_END": "text",
    "TOOL_CALL_END": "call",
    "REASONING_END": "span",
    "REASONING_MESSAGE_END": "thought",
}


def read_sse(text):
    """Return the data of server-sent events, as JSON."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def verify(events):
    """Check types and order, as AG-UI's verifier does."""
    for each in events:
        EVENT.validate_python(each)
    assert events[0]["type"] == "RUN_STARTED", events[0]
    assert events[-1]["type"] in ("RUN_FINISHED", "RUN_ERROR"), events[-1]
    is_open, steps = set(), set()
    for each in events[1:]:
        kind = each["type"]
        key = each.get("toolCallId") or each.get("messageId")
        if kind in OPENS:
            assert (OPENS[kind], key) not in is_open, f"{each} is open already"
            is_open.add((OPENS[kind], key))
        elif kind in GOES_ON:
            assert (GOES_ON[kind], key) in is_open, f"{each} is not open"
        elif kind in ENDS:
            is_open.remove((ENDS[kind], key))
        elif kind == "STEP_STARTED":
            assert each["stepName"] not in steps, each
            steps.add(each["stepName"])
        elif kind == "STEP_FINISHED":
            steps.remove(each["stepName"])
        elif kind in ("RUN_STARTED", "RUN_FINISHED", "RUN_ERROR"):
            assert each is events[-1], f"{each} is not the last"
    if events[-1]["type"] == "RUN_FINISHED":
        assert not is_open, is_open
        assert not steps, steps


def shown(events, before=()):
    """Return the messages that a client has after these events: by id the role, the text, and the calls with their arguments."""
    messages = {each["id"]: each for each in before}
    for each in events:
        match each["type"]:
            case "MESSAGES_SNAPSHOT":
                new = {one["id"]: _kept(one) for one in each["messages"]}
                has_thoughts = any(one["role"] == "reasoning" for one in new.values())
                stay = {
                    at: one
                    for at, one in messages.items()
                    if at in new or (one["role"] == "reasoning" and not has_thoughts)
                }
                messages = {**stay, **new}
            case "TEXT_MESSAGE_START":
                messages.setdefault(each["messageId"], _message(each["messageId"], "assistant"))
            case "REASONING_MESSAGE_START":
                messages.setdefault(each["messageId"], _message(each["messageId"], "reasoning"))
            case "TEXT_MESSAGE_CONTENT" | "REASONING_MESSAGE_CONTENT":
                messages[each["messageId"]]["text"] += each["delta"]
            case "TOOL_CALL_START":
                parent = messages.setdefault(each["parentMessageId"], _message(each["parentMessageId"], "assistant"))
                parent["calls"].setdefault(each["toolCallId"], [each["toolCallName"], ""])
            case "TOOL_CALL_ARGS":
                [call] = [
                    one["calls"][each["toolCallId"]] for one in messages.values() if each["toolCallId"] in one["calls"]
                ]
                call[1] += each["delta"]
            case "TOOL_CALL_RESULT":
                messages[each["messageId"]] = _message(each["messageId"], "tool", each["content"])
    return list(messages.values())


def _message(at, role, text=""):
    return {"id": at, "role": role, "text": text, "calls": {}}


def _kept(message):
    calls = {
        call["id"]: [call["function"]["name"], call["function"]["arguments"]] for call in message.get("toolCalls", ())
    }
    return {**_message(message["id"], message["role"], message.get("content") or ""), "calls": calls}
