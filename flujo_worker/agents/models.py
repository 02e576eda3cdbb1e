"""Find models by their names, and the settings that they would not send.

A provider's client is made once per event loop, of which a worker process has one, when it is first asked, and shared by all agents that
name its models: it owns the connections. It is made in a thread, because importing a provider's SDK takes a second or more.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import cache, partial
from typing import Any, Final
from weakref import WeakKeyDictionary

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models import Model, infer_model
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.providers import infer_provider

from flujo_client.errors import ConfigurationError
from flujo_worker.agents.scripted import last_prompt
from flujo_worker.concurrency.call_context import setting
from flujo_worker.runtime.attempt_run import in_thread

MOCK: Final = "local:mock"
"""The model that answers with what it is asked: for trying out, without provider or key."""
NO_RETRIES: Final = {"max_retries": 0}
"""The provider's client does not retry: retries belong to the step, where they are counted, paid for and logged."""
_THE_CLIENTS: Final = {"max_retries": None}
"""As the client is set up: pydantic-ai copies it for each request that says otherwise, which takes 0.3 ms."""

_SAMPLING: Final = ("temperature", "top_p")
_SAMPLING_OF_ANTHROPIC: Final = ("temperature", "top_p", "top_k")


class _Known:
    """The clients that an event loop's agents share: their connections belong to that loop."""

    def __init__(self) -> None:
        self.models: dict[str, Model[Any]] = {}
        self._making, self._provider = threading.Lock(), cache(infer_provider)

    def model(self, name: str) -> Model[Any]:
        """Return the model of that name, made when it is first asked for. Called in a thread."""
        with self._making:
            if name not in self.models:
                self.models[name] = _made(name, self._provider)
            return self.models[name]


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
    """Return the model that an agent's next run asks, by `agent.override(model=…)` if that is set; raises ConfigurationError for an unknown name."""
    override = getattr(agent, "_override_model", None)  # the library has no public API for it
    chosen = None if override is None else override.get()
    model = agent.model if chosen is None else chosen.value
    return None if model is None else await model_for(model)


def asking(model: Model[Any] | None) -> AbstractContextManager[None]:
    """Ask this model inside: durability finds it by `asked_model`, for agents do not know the instances that we pass."""
    return setting(_asked, model)


def asked_model() -> Model[Any] | None:
    return _asked.get()


def _made(name: str, provider: Callable[[str], Any]) -> Model[Any]:
    if name == MOCK:
        return _echo()
    if ":" not in name and name != "test":
        raise _unknown(name)
    try:
        return _sending_once(infer_model(name, provider_factory=provider))
    except ValueError as error:
        raise _unknown(name, error) from error


def _unknown(name: str, cause: ValueError | None = None) -> ConfigurationError:
    suggestion = "write `provider:model`, such as `openai:gpt-4o`"
    return ConfigurationError(f"unknown model '{name}'", suggestion=suggestion, cause=cause)


def _echo() -> Model[Any]:
    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        prompt = last_prompt(messages)
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


def profile_of(model: Model[Any]) -> ModelProfile:
    """Return what a model can do; nothing is known of one that falls back over several."""
    try:
        return model.profile
    except NotImplementedError:
        return {}


def without_retries(model: Model[Any], settings: Any) -> Any:
    """Return settings with which a model's client sends one request; pydantic-ai before 2.58 has none: there, set it at the client."""
    models = each_of(model)
    if not hasattr(model, "unsupported_settings"):
        for each in models:
            _sending_once(each)
        return settings
    is_needed = any(each.provider is not None and "max_retries" not in each.unsupported_settings for each in models)
    if not is_needed:
        return settings
    return settings | (_THE_CLIENTS if all(map(_sends_once, models)) else NO_RETRIES)


def _sending_once(model: Model[Any]) -> Model[Any]:
    """Set up a model's client not to retry, if it has such a client."""
    client: Any = getattr(model, "client", None)
    if hasattr(client, "max_retries"):
        client.max_retries = 0
    return model


def _sends_once(model: Model[Any]) -> bool:
    return getattr(getattr(model, "client", None), "max_retries", None) == 0


def dropped_by(model: Model[Any], settings: Mapping[str, Any]) -> list[str]:
    """Return the given settings that a model does not send."""
    given = [name for name, value in settings.items() if value is not None and name != "max_retries"]
    ignored = _by_profile(profile_of(model), settings) | getattr(model, "unsupported_settings", frozenset())
    return [name for name in given if name in ignored]


def _by_profile(profile: Mapping[str, Any], settings: Mapping[str, Any]) -> set[str]:
    names = set(profile.get("openai_unsupported_model_settings", ()))
    if profile.get("anthropic_disallows_sampling_settings"):
        names.update(_SAMPLING_OF_ANTHROPIC)
    if profile.get("openai_supports_reasoning") and _reasons(profile, settings):
        names.update(_SAMPLING)
    return names


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
