"""Find models by their names, and the settings that they would not send.

A provider's client is made once per event loop, of which a worker process has one, when it is first asked, and shared by all agents that
name its models: it owns the connections. It is made in a thread, because importing a provider's SDK takes a second or more. It must not call
a model. In: a model, or its name. Out: the model; the names of settings that it would not send.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, infer_model
from pydantic_ai.models.function import AgentInfo
from pydantic_ai.providers import infer_provider

from flujo_client.errors import ConfigurationError
from flujo_worker.runtime.attempt_run import in_thread

MOCK: Final = "local:mock"
"""The model that answers with what it is asked: for trying out, without provider or key."""
NO_RETRIES: Final = {"max_retries": 0}
"""The provider's client does not retry: retries belong to the step, where they are counted, paid for and logged."""

_SAMPLING: Final = ("temperature", "top_p")
_SAMPLING_OF_ANTHROPIC: Final = ("temperature", "top_p", "top_k")


@dataclass(frozen=True, slots=True)
class _Known:
    """The clients that an event loop's agents share: their connections belong to that loop."""

    models: dict[str, Model[Any]] = field(default_factory=dict)
    providers: dict[str, Any] = field(default_factory=dict)
    making: threading.Lock = field(default_factory=threading.Lock)

    def model(self, name: str) -> Model[Any]:
        """Return the model of that name, made when it is first asked for. Called in a thread."""
        with self.making:
            if name not in self.models:
                self.models[name] = _made(name, self)
            return self.models[name]

    def provider(self, name: str) -> Any:
        """Return the provider of that name, made from the environment when it is first asked for."""
        if name not in self.providers:
            self.providers[name] = infer_provider(name)
        return self.providers[name]


_asked: ContextVar[Model[Any] | None] = ContextVar("flujo_asked_model", default=None)
_known: WeakKeyDictionary[asyncio.AbstractEventLoop, _Known] = WeakKeyDictionary()


async def model_for(model: Model[Any] | str) -> Model[Any]:
    """Return the model with this name; to be awaited on the event loop that asks it. Raises ConfigurationError: no provider has such a model."""
    if not isinstance(model, str):
        return model
    known = _known.setdefault(asyncio.get_running_loop(), _Known())
    found = known.models.get(model)
    return await in_thread(partial(known.model, model)) if found is None else found


async def effective_model(agent: Any) -> Model[Any] | None:
    """Return the model that an agent's next run asks: what `agent.override(model=…)` says, else its own; None if it has none.

    Raises ConfigurationError: no provider has such a model.
    """
    override = getattr(agent, "_override_model", None)  # the library has no public API for it
    chosen = None if override is None else override.get()
    model = agent.model if chosen is None else chosen.value
    return None if model is None else await model_for(model)


@contextmanager
def asking(model: Model[Any] | None) -> Iterator[None]:
    """Ask this model inside: durability finds it by `asked_model`, for agents do not know the instances that we pass."""
    token = _asked.set(model)
    try:
        yield
    finally:
        _asked.reset(token)


def asked_model() -> Model[Any] | None:
    """Return the model that is asked here."""
    return _asked.get()


def _made(name: str, known: _Known) -> Model[Any]:
    if name == MOCK:
        return _echo()
    if ":" not in name and name != "test":
        raise _unknown(name)
    try:
        return infer_model(name, provider_factory=known.provider)
    except ValueError as error:
        raise _unknown(name, error) from error


def _unknown(name: str, cause: ValueError | None = None) -> ConfigurationError:
    suggestion = "write `provider:model`, such as `openai:gpt-4o`"
    return ConfigurationError(f"unknown model '{name}'", suggestion=suggestion, cause=cause)


def _echo() -> Model[Any]:
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        prompts = [part for message in messages for part in message.parts if part.part_kind == "user-prompt"]
        prompt = str(prompts[-1].content) if prompts else ""
        if info.output_tools and not info.allow_text_output:
            return ModelResponse([ToolCallPart(info.output_tools[0].name, _arguments(prompt))])
        return ModelResponse([TextPart(prompt)])

    return FunctionModel(respond, model_name="mock")


def _arguments(text: str) -> str:
    """Write the arguments of a call; a value that is not a JSON object is under the library's key for plain values."""
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    return json.dumps(value if isinstance(value, dict) else {"response": value})


def each_of(model: Model[Any]) -> list[Model[Any]]:
    """Return the models that a model may ask: itself, or those that it falls back on."""
    others = getattr(model, "models", None)
    return list(others) if isinstance(others, list | tuple) else [model]


def without_retries(model: Model[Any], settings: Any) -> Any:
    """Return settings with which a model's client sends one request; pydantic-ai before 2.58 has none: there, set it at the client."""
    models = each_of(model)
    if not hasattr(model, "unsupported_settings"):
        clients: list[Any] = [getattr(each, "client", None) for each in models]
        for client in clients:
            if hasattr(client, "max_retries"):
                client.max_retries = 0
        return settings
    is_needed = any(each.provider is not None and "max_retries" not in each.unsupported_settings for each in models)
    return settings | NO_RETRIES if is_needed else settings


def dropped_by(model: Model[Any], settings: Mapping[str, Any]) -> list[str]:
    """Return the given settings that a model does not send."""
    given = [name for name, value in settings.items() if value is not None and name != "max_retries"]
    ignored = _by_profile(model, settings) | getattr(model, "unsupported_settings", frozenset())
    return [name for name in given if name in ignored]


def _by_profile(model: Model[Any], settings: Mapping[str, Any]) -> frozenset[str]:
    try:
        profile: Mapping[str, Any] = model.profile
    except NotImplementedError:
        return frozenset()
    names = set(profile.get("openai_unsupported_model_settings", ()))
    if profile.get("anthropic_disallows_sampling_settings"):
        names.update(_SAMPLING_OF_ANTHROPIC)
    if profile.get("openai_supports_reasoning") and _reasons(profile, settings):
        names.update(_SAMPLING)
    return frozenset(names)


def _reasons(profile: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Return whether a model of OpenAI reasons for this request: then it takes no sampling settings."""
    efforts = profile.get("openai_reasoning_efforts")
    can_be_off = profile.get("openai_supports_reasoning_effort_none") if efforts is None else "none" in efforts
    if not can_be_off:
        return True
    effort = settings.get("openai_reasoning_effort")
    if effort is not None:
        return bool(effort != "none")
    thinking = settings.get("thinking")
    if thinking is None:
        return bool(profile.get("thinking_enabled_by_default", profile.get("openai_reasoning_enabled_by_default")))
    return thinking is not False or bool(profile.get("thinking_always_enabled"))
