"""Enforce structured output with pydantic-ai: choose how a model's output is requested.

It never fails a step that would run without it: if the model or pydantic-ai does not support a form, it is skipped and logged.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from typing import Any, Final, NamedTuple

from pydantic_ai import AgentRunResult
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.exceptions import ModelHTTPError, UserError
from pydantic_ai.models import Model, ModelRequestContext, infer_model_profile, parse_model_id
from pydantic_ai.output import NativeOutput, PromptedOutput
from pydantic_ai.profiles import ModelProfile

from flujo_client.frozen import frozen
from flujo_worker.agents import outputs
from flujo_worker.agents.models import profile_of
from flujo_worker.agents.reading import OutputReader, refuses_format
from flujo_worker.agents.shaping import AUTO, OFF, REFUSED, TELEMETRY, Form, Shaping, emit_decision
from flujo_worker.aros.typed import schema_hash
from flujo_worker.observe.log import emit
from flujo_worker.runtime.attempt_run import current_run

Run = Callable[..., Awaitable[AgentRunResult[Any]]]

_WITHOUT: Final = re.compile(r"(?:ft:)?(?:gpt-3\.?5|gpt-4(?:$|[-:])|gpt-4o-2024-05-13|o1-(?:mini|preview))")
"""OpenAI's models from before structured outputs, and their fine-tunes; pydantic-ai's profiles do not except them."""

_FAMILIES: Final = {"anthropic": "anthropic", "google": "google", "google-cloud": "google", "xai": "grok"}
"""The provider whose profile is used while a provider's SDK is not installed."""


class Capability(NamedTuple):
    """The features that a model's provider can enforce; `provider` is pydantic-ai's name of it, empty if the id has none."""

    json_schema: bool
    json_object: bool
    provider: str
    model: str


def capability_of(model: Model[Any] | str | None) -> Capability:
    """Return what a model supports, by pydantic-ai's profiles: nothing without a model, and nothing of a fallback over several."""
    if model is None or isinstance(model, str):
        return _of_id(model or "")
    return _capability(profile_of(model), model.system, model.model_name)


@lru_cache(maxsize=256)
def _of_id(model: str) -> Capability:
    provider, name = parse_model_id(model)
    try:
        profile = infer_model_profile(model)
    except (ImportError, RuntimeError, ValueError):  # no SDK, or a gateway that pydantic-ai does not know
        profile = _family_profile(provider or "", name)
    return _capability(profile, provider or "", name)


def _family_profile(provider: str, name: str) -> ModelProfile:
    if (family := _FAMILIES.get(provider)) is None:
        return {}
    found = getattr(import_module(f"pydantic_ai.profiles.{family}"), f"{family}_model_profile")
    profile: ModelProfile | None = found(name)
    return profile or {}


def _capability(profile: ModelProfile, provider: str, model: str) -> Capability:
    if _WITHOUT.match(model.rpartition("/")[2]) is not None:
        profile = {}
    schema, plain = profile.get("supports_json_schema_output"), profile.get("supports_json_object_output")
    return Capability(bool(schema), bool(plain), provider, model)


_ANY_OBJECT: Final = {"type": "object"}
_FORMATS: Final = ("response_format", "text")
"""Settings by which a caller asks for a format: chat completions' parameter and the Responses API's."""


@frozen
class OutputRequest:
    """How a run's output is requested."""

    mode: str
    schema_hash: str | None = None
    form: Form | None = None
    """The form requested from the provider; None without enforcement."""
    output_type: Any = None
    """Replaces the agent's own type in this run."""
    skipped: str | None = None
    """Why it is not enforced."""
    shadow: bool = False

    def emit_events(self, sent: ModelRequestContext) -> None:
        """Emit the decision, and that it was applied if the request that was sent contains it."""
        emit_decision(self.mode, self.schema_hash, self.form, self.skipped, shadow=self.shadow)
        if self.skipped is None and self.form is not None and _carries(sent, self.form):
            emit("grammar.applied", mode="openai_json", form=self.form, schema_hash=self.schema_hash)


async def run_shaped(agent: AbstractAgent[Any, Any], shaping: Shaping, settings: Mapping[str, Any], run: Run) -> Any:
    """Run an agent as a step wants its output; return the library's result, and whether its output has been read and validated."""
    output_request = output_request_for(agent, shaping, settings)
    names, run_so_far = _names(agent, output_request), current_run()
    memory = None if run_so_far is None else run_so_far.refused_formats
    if memory is not None and any([await memory.includes(name) for name in names]):
        output_request = replace(output_request, output_type=None, skipped=REFUSED)
    reading = OutputReader(shaping, output_request.emit_events)
    try:
        result = await run(reading, output_type=output_request.output_type)
    except (UserError, ModelHTTPError) as refusal:
        reason = _reason(refusal)
        if output_request.output_type is None or reading.was_sent or reason is None:
            raise
        reading = OutputReader(shaping, replace(output_request, output_type=None, skipped=reason).emit_events)
        result = await run(reading)
        if memory is not None and reason == REFUSED:
            await memory.add(names["invalid schema" in str(refusal).lower()])
    return result, reading.was_read


def _names(agent: AbstractAgent[Any, Any], output_request: OutputRequest) -> tuple[str, ...]:
    """Name what a provider may refuse: structured output by this model, and this schema; nothing where it is not asked."""
    if output_request.output_type is None:
        return ()
    asked = capability_of(agent.model)
    model = f"{asked.provider}:{asked.model}"
    return model, f"{model}#{output_request.schema_hash}"


_NOT_THE_FORM: Final = ("pydantic_ai.agent", "pydantic_ai.durable_exec")
"""Where an error about the agent is raised: it has no name, its toolsets none, its model is not registered, it has two engines."""


def _reason(refusal: UserError | ModelHTTPError) -> str | None:
    """Return why a request was refused: by the provider, by output validators, or by a model that cannot do it together with tools."""
    if isinstance(refusal, ModelHTTPError):
        return REFUSED if refuses_format(refusal) else None
    if "output validators" in str(refusal):
        return "output_validators"
    raised_in = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(refusal.__traceback__)][-1]
    return None if raised_in.startswith(_NOT_THE_FORM) else "unsupported_provider"


def output_request_for(agent: AbstractAgent[Any, Any], shaping: Shaping, settings: Mapping[str, Any]) -> OutputRequest:
    """Decide how an agent's model is asked for its output."""
    if shaping.structured_output == OFF:
        return OutputRequest(OFF)
    types = outputs.members(agent.output_type)
    is_chosen = any(map(outputs.is_chosen, types))
    is_derived = shaping.schema is None and not is_chosen and types != [str]
    try:
        schema = outputs.schema_of(types) if is_derived else shaping.schema
    except outputs.Unsupported:
        return OutputRequest(shaping.structured_output, skipped="schema_unsupported")
    output_request = OutputRequest(shaping.structured_output, schema_hash(schema), shadow=shaping.shadow)
    if output_request.mode in TELEMETRY:
        return output_request
    if output_request.mode == AUTO and schema is None and not is_chosen:
        return OutputRequest(OFF)  # JSON is not expected
    reason = _against(agent, shaping, settings, types)
    if reason is not None:
        return replace(output_request, skipped=reason)
    return _with_output(output_request, capability_of(agent.model), types, shaping)


def _against(
    agent: AbstractAgent[Any, Any], shaping: Shaping, settings: Mapping[str, Any], types: list[Any]
) -> str | None:
    """Return why structured output is not requested, regardless of the model."""
    if shaping.shadow:
        return "shadow"
    if any(map(outputs.is_chosen, types)):
        return "output_marker"
    if str in types and types != [str]:
        return "text_allowed"
    own = getattr(agent.model, "settings", None) if isinstance(agent.model, Model) else None
    given = (own, getattr(agent, "model_settings", None), settings)
    return "caller_response_format" if any(map(_names_format, given)) else None


def _names_format(settings: Any) -> bool:
    if not isinstance(settings, dict):
        return False
    extra = settings.get("extra_body")
    return any(name in settings or (isinstance(extra, dict) and name in extra) for name in _FORMATS)


def _with_output(
    output_request: OutputRequest, capability: Capability, types: list[Any], shaping: Shaping
) -> OutputRequest:
    if not (capability.json_schema or capability.json_object):
        return replace(output_request, skipped="unsupported_provider")
    try:
        output = _output(types, shaping)
    except outputs.Unsupported:
        return replace(output_request, skipped="schema_unsupported")
    if capability.json_schema and output_request.schema_hash is not None:
        return replace(output_request, form="json_schema", output_type=NativeOutput(output, name=shaping.name))
    if capability.json_object:
        hashed = output_request.schema_hash or schema_hash(_ANY_OBJECT)
        marked = PromptedOutput(output, name=shaping.name)
        return replace(output_request, form="json_object", output_type=marked, schema_hash=hashed)
    return replace(output_request, skipped="unsupported_provider")


def _output(types: list[Any], shaping: Shaping) -> Any:
    """Choose what to ask for: the agent's type by the step's own schema if there is one; a dictionary of a text agent."""
    if types == [str]:
        return outputs.structured(shaping.schema or _ANY_OBJECT, shaping.name)
    if shaping.schema is not None and len(types) == 1:
        return outputs.described(types[0], shaping.schema)
    return types


def _carries(sent: ModelRequestContext, form: Form) -> bool:
    """Return whether a request carried the provider's parameter; with tools that is not known, for some providers leave out the JSON-object form then."""
    parameters = sent.model_request_parameters
    if _names_format(sent.model_settings):
        return False
    if form == "json_schema":
        return parameters.output_mode == "native"
    return parameters.output_mode == "prompted" and not parameters.function_tools
