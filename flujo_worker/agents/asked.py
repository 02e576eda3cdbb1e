"""Write what a unit asks, as bytes: the same in every process, without times, the ids of runs, and what differs from one answer to the next.

Pure but for the memory of messages' digests: a conversation grows at its end, and what was digested before is not dumped again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, Literal

import orjson
from pydantic import TypeAdapter
from pydantic_ai.durable_exec import (
    DurableOperationId,
    ModelCompactMessagesId,
    ModelRequestId,
    ToolsetCallToolId,
    ToolsetValidateToolArgumentsId,
)
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import RunContext
from pydantic_core import to_jsonable_python

from flujo_client.serial import canonical, encode

Fingerprint = Literal["conversation", "strict"]
"""What counts of a model request: the model and the conversation; or also its instructions, tools, settings and form of output."""

_PARAMETERS: Final = TypeAdapter(ModelRequestParameters)
_OF_THE_RUN: Final = ("timestamp", "run_id", "conversation_id")
_OPTIONS: Final = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS


def asked(
    operation: DurableOperationId,
    inputs: Sequence[Any],
    *,
    fingerprint: Fingerprint,
    is_effect: bool,
    digests: dict[Any, Any],
) -> bytes:
    """Write what an operation is asked.

    Args:
        operation: of pydantic-ai.
        inputs: what the library names as that which the answer depends on.
        fingerprint: what counts of a model request.
        is_effect: whether a call of a tool is the same whichever answer of the model asks for it.
        digests: those of messages that were asked before in this attempt.
    """
    match operation:
        case ModelRequestId():
            model_id, messages, settings, parameters, _ = inputs
            what = [model_id, operation.model_name, _digests_of(messages, fingerprint, digests)]
            if fingerprint == "strict":
                what += [_plain(settings), _PARAMETERS.dump_python(parameters, mode="json", fallback=_type_of)]
        case ModelCompactMessagesId():
            model_id, context, instructions, _ = inputs
            what = [model_id, operation.model_name, _digests_of(context.messages, fingerprint, digests), instructions]
        case ToolsetCallToolId() | ToolsetValidateToolArgumentsId():
            name, arguments, ctx, _ = inputs
            what = [name, _plain(arguments)]
            what += [ctx.tool_call_approved] if is_effect else [ctx.tool_call_id, ctx.tool_call_approved]
        case _:
            what = [_plain(each) for each in inputs if not isinstance(each, RunContext)]
    return _bytes(what)


def prompt_of(ctx: RunContext[Any]) -> bytes:
    """Write what an agent is asked to do, so that equal runs beside each other are told apart by their number alone."""
    return _bytes(_plain(ctx.prompt))


def _digests_of(messages: Sequence[ModelMessage], fingerprint: Fingerprint, known: dict[Any, Any]) -> list[str]:
    """Digest each message. One that was changed in place has other parts or contents, or as many of them in another place."""
    made = []
    for message in messages:
        held = [message, *(each for part in message.parts for each in (part, getattr(part, "content", None)))]
        name = fingerprint, *map(id, held)
        if name not in known:
            data = _bytes(_conversation(message, fingerprint))
            known[name] = held, blake2b(data, digest_size=16).hexdigest()  # held, so that no other object gets its id
        made.append(known[name][1])
    return made


def _conversation(message: ModelMessage, fingerprint: Fingerprint) -> Mapping[str, Any]:
    """Dump a message without times, ids of the run, and what a provider says beside its answer."""
    dumped: dict[str, Any]
    [dumped] = ModelMessagesTypeAdapter.dump_python([message], mode="json", fallback=_type_of)
    if dumped["kind"] == "response":
        dumped = {"parts": dumped["parts"]}
    else:
        for name in _OF_THE_RUN:
            dumped.pop(name, None)
        if fingerprint == "conversation":
            dumped.pop("instructions", None)
            dumped["parts"] = [part for part in dumped["parts"] if part["part_kind"] != "system-prompt"]
    for part in dumped["parts"]:
        part.pop("timestamp", None)
    return dumped


def _bytes(what: Any) -> bytes:
    try:
        return orjson.dumps(what, option=_OPTIONS)
    except TypeError:  # an integer of more than 64 bits, or half of a character
        return canonical(encode(what))


def _plain(value: Any) -> Any:
    return to_jsonable_python(value, bytes_mode="base64", fallback=_type_of)


def _type_of(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
