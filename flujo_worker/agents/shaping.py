"""The requirements of a step for its agent's output, independent of providers; and the `response_format` of agents not on pydantic-ai.

`structured.py` decides which of them the model supports.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal, TypedDict, TypeVar

from flujo_client.frozen import frozen
from flujo_worker.observe.log import emit
from flujo_worker.runtime.call_args import accepted_kwargs

Schema = Mapping[str, Any]
Run = TypeVar("Run", bound=Callable[..., Any])


@frozen
class Origin:
    """The origin of an output."""

    finish_reason: str | None = None
    """Why the model stopped; `length` means that it was cut."""
    key: str | None = None
    """The key under which the agent library requested the output; None: it requested it directly."""
    is_whole: bool = True
    """Whether the output is the value for the step's output processors, and not the arguments of a function."""
    kind: Any = None
    """The type behind the schema, or its validator, which may take what the schema refuses; None: the schema is the judge."""

    @property
    def is_cut(self) -> bool:
        return self.finish_reason == "length"


PLAIN: Final = Origin()
"""Of a text or data that an agent gave back."""


def is_structured_dict(output_type: Any) -> bool:
    """Return whether the type is a schema written by hand; pydantic checks nothing of it."""
    return getattr(output_type, "__is_model_like__", False) is True


Read = Callable[[Any, Schema | None, Origin], Awaitable[Any]]
"""Makes a raw output hold under a schema (None: any JSON): a text, or data that the provider's client has decoded.

It returns the output itself if nothing had to be done, else its meaning: JSON text for a text, data for data; or it raises
AgentIOValidationError.
"""

Fit = Callable[[Any, Schema | None, Callable[[Any], Awaitable[Any]], Origin], Awaitable[Any]]
"""Validates what `Read` gave, which holds under the schema, by the library's type, with another try by the step's processors at what it refuses.

The function that it gets returns the type's value, or raises AgentIOValidationError.
"""


async def fit_at_once(readable: Any, _: Schema | None, validate: Callable[[Any], Awaitable[Any]], __: Origin) -> Any:
    """Validate what was read: the first verdict of the type is final."""
    return await validate(readable)


@frozen
class Shaping:
    """The requirements of a step for its agent's output."""

    structured_output: str
    """`off`, `auto`, `openai_json`, `outlines` or `xgrammar`."""
    name: str
    """The schema's name for the provider, derived from the step's."""
    schema: Schema | None
    """The step's own JSON Schema; None leaves it to the agent's output type."""
    shadow: bool
    """Change nothing, and only log the decision on structured output."""
    read: Read
    """Makes an output valid, called before the agent library's validation."""
    reads: bool = True
    """`read` may change an output: a text in place of an output tool's call is then read as its arguments."""
    fit: Fit = fit_at_once
    """Calls that validation."""


class CallOptions(TypedDict, total=False):
    """The options that every agent of ours takes by name for one call."""

    guidance: str | None
    """What was wrong with the previous attempt's answer, sent to the model after the input."""
    history: str | None
    """The loop's conversation so far, sent to the model before the input."""
    temperature: float | None
    """Sent, like the three below, as the library's model settings; the agent's own when None."""
    top_p: float | None
    top_k: int | None
    max_tokens: int | None
    shaping: Shaping | None
    """How the step wants its output requested and read."""


def naming_options(run: Run) -> Run:
    """Name the options in the signature of an agent's `run`: a step passes on only what is named."""
    own = inspect.signature(run)
    fixed = [each for each in own.parameters.values() if each.kind is not each.VAR_KEYWORD]
    kind = inspect.Parameter.KEYWORD_ONLY
    named = [inspect.Parameter(name, kind, default=None) for name in CallOptions.__annotations__]
    run.__signature__ = own.replace(parameters=[*fixed, *named])  # type: ignore[attr-defined]  # of every function
    return run


Form = Literal["json_schema", "json_object"]

OFF: Final = "off"
AUTO: Final = "auto"
TELEMETRY: Final = ("outlines", "xgrammar")
"""Modes that are only logged and change no request."""
REFUSED: Final = "refused_by_provider"
_NAME: Final = "response_format"


def emit_decision(mode: str, schema_hash: str | None, form: Form | None, skipped: str | None, *, shadow: bool) -> None:
    """Report the form in which the model is asked for structured output, or why it is not; of an experimental mode, what it would have applied."""
    mark: dict[str, Any] = {"shadow": True} if shadow else {}
    if mode in TELEMETRY:
        emit("grammar.applied", mode=mode, schema_hash=schema_hash, telemetry_only=True, **mark)
        skipped = "experimental"
    if skipped is not None:
        emit("aros.soe.skipped", mode=mode, reason=skipped, **mark)
    elif form is not None:
        emit("aros.soe.enabled", mode=mode, form=form, schema_hash=schema_hash)


def response_format(agent: Any, target: Any, options: Mapping[str, Any], shaping: Shaping | None) -> dict[str, Any]:
    """Make the option that asks an agent for structured output, if the step has a schema, and emit the decision. `target` is what the agent wraps."""
    if shaping is None or shaping.structured_output == OFF or shaping.schema is None:
        return {}
    from flujo_worker.aros.typed import schema_hash

    mode, schema = shaping.structured_output, {"name": shaping.name, "schema": dict(shaping.schema), "strict": False}
    hint = {_NAME: {"type": "json_schema", "json_schema": schema}}
    reason = _against(agent, target, options, hint, shadow=shaping.shadow)
    emit_decision(mode, schema_hash(shaping.schema), "json_schema", reason, shadow=shaping.shadow)
    return {} if mode in TELEMETRY or reason is not None else hint


def _against(
    agent: Any, target: Any, options: Mapping[str, Any], hint: Mapping[str, Any], *, shadow: bool
) -> str | None:
    if shadow:
        return "shadow"
    if options.get(_NAME) is not None:
        return "caller_response_format"
    return None if accepted_kwargs(agent, hint) and _is_named(target) else "unsupported_agent"


def _is_named(target: Any) -> bool:
    """Return whether the parameter is there by its name: `**kwargs` takes anything, which says nothing of its meaning."""
    run = getattr(target, "run", None)
    try:
        return _NAME in inspect.signature(run if callable(run) else target).parameters
    except (TypeError, ValueError):
        return False
