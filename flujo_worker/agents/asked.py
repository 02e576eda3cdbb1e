"""Write what a unit asks, as bytes: the same in every process, without times, the ids of runs, and what differs from one answer to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, Literal, NamedTuple

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

Digests = dict[Any, Any]
PARTS: Final = 256
"""How many parts of a request are recorded; of a longer conversation, its end."""
SHORT: Final = 8
"""The digits of a part's digest that are recorded."""

_PARAMETERS: Final = TypeAdapter(ModelRequestParameters)
_OPTIONS: Final = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS


class Asked(NamedTuple):
    """What a unit is asked, as bytes; of a request also its parts, each as `name: digest`, to find what has changed."""

    data: bytes
    parts: tuple[str, ...] = ()


def asked(
    operation: DurableOperationId, inputs: Sequence[Any], fingerprint: Fingerprint, digests: Digests, *, is_effect: bool
) -> Asked:
    """Write what the answer of an operation depends on. With `is_effect`, a call of a tool is the same whichever answer of the model asks for it."""
    match operation:
        case ModelRequestId():
            model_id, messages, settings, parameters, _ = inputs
            parts = {"model": f"{model_id} {operation.model_name}"}
            if fingerprint == "strict":
                parts |= {"settings": _digest(_plain(lasting(settings))), **_strictly(messages, parameters)}
            return _of_parts(parts | _digests_of(messages, fingerprint, digests))
        case ModelCompactMessagesId():
            model_id, context, instructions, _ = inputs
            own = {"model": f"{model_id} {operation.model_name}", "instructions": _digest(instructions)}
            return _of_parts(own | _digests_of(context.messages, fingerprint, digests))
        case ToolsetCallToolId() | ToolsetValidateToolArgumentsId():
            name, arguments, ctx, _ = inputs
            what = [name, _plain(arguments)]
            what += [ctx.tool_call_approved] if is_effect else [ctx.tool_call_id, ctx.tool_call_approved]
        case _:
            what = [_plain(each) for each in inputs if not isinstance(each, RunContext)]
    return Asked(_bytes(what))


def _of_parts(parts: Mapping[str, str]) -> Asked:
    lines = [f"{name}: {part if name == 'model' else part[:SHORT]}" for name, part in parts.items()]
    return Asked(_bytes(list(parts.values())), (*lines[:1], *lines[1:][-PARTS:]))


def _strictly(messages: Sequence[ModelMessage], given: ModelRequestParameters) -> dict[str, str]:
    """Digest the instructions, each tool, and the rest of what a request may be answered with."""
    dumped = _PARAMETERS.dump_python(given, mode="json", exclude_defaults=True, fallback=_type_of)
    texts = [each.instructions for each in messages if each.kind == "request"]
    instructions = {"instructions": _digest([texts, dumped.pop("instruction_parts", None)])}
    tools = {f"tool {each['name']}": _digest(each) for each in dumped.pop("function_tools", ())}
    return {**instructions, **tools, "output": _digest(dumped)}


def lasting(settings: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Leave the trace out of the settings: it is of one attempt."""
    headers = (settings or {}).get("extra_headers")
    if settings is None or not headers or "traceparent" not in headers:
        return settings
    left = {name: value for name, value in headers.items() if name != "traceparent"}
    rest = {name: each for name, each in settings.items() if name != "extra_headers"}
    return {**rest, "extra_headers": left} if left else rest


def prompt_of(ctx: RunContext[Any]) -> bytes:
    """Write what an agent is asked to do, so that equal runs beside each other are told apart by their number alone."""
    return _bytes(_plain(ctx.prompt))


def _digests_of(messages: Sequence[ModelMessage], fingerprint: Fingerprint, known: Digests) -> dict[str, str]:
    """Digest each message. One that was changed in place has other parts or contents, or as many of them in another place."""
    made = {}
    for number, message in enumerate(messages, 1):
        held = [message, *(each for part in message.parts for each in (part, getattr(part, "content", None)))]
        name = fingerprint, *map(id, held)
        if name not in known:
            # Held, so that no other object gets its id.
            known[name] = held, _digest(_conversation(message, fingerprint))
        kinds = "+".join(part.part_kind for part in message.parts)
        made[f"message {number} ({kinds})"] = known[name][1]
    return made


def _conversation(message: ModelMessage, fingerprint: Fingerprint) -> Mapping[str, Any]:
    """Dump a message without times, ids of the run, what a provider says beside its answer, and defaults, which releases add to."""
    dumped: dict[str, Any]
    [dumped] = ModelMessagesTypeAdapter.dump_python([message], mode="json", exclude_defaults=True, fallback=_type_of)
    parts = [each | {"kind": part.part_kind} for part, each in zip(message.parts, dumped["parts"], strict=True)]
    for part in parts:
        part.pop("timestamp", None)
        if not part.get("content_file_digests"):
            part.pop("content_file_digests", None)  # of no file: not there before 2.66
        if part["kind"] == "retry-prompt" and part.get("tool_name") is None:
            part.pop("tool_call_id", None)  # drawn at random
    if message.kind == "response":
        return {"response": parts}
    return {"request": [part for part in parts if fingerprint == "strict" or part["kind"] != "system-prompt"]}


def _digest(what: Any) -> str:
    return blake2b(_bytes(what), digest_size=16).hexdigest()


def _bytes(what: Any) -> bytes:
    try:
        return orjson.dumps(what, option=_OPTIONS)
    except TypeError:  # an integer of more than 64 bits, or half of a character
        return canonical(encode(what))


def _plain(value: Any) -> Any:
    return to_jsonable_python(value, bytes_mode="base64", fallback=_type_of)


def _type_of(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
