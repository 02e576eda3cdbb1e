"""`make_agent_async`: an agent on pydantic-ai that a step can run.

The agent makes one call per attempt: the library's own output retries are off, and so are those of the provider's client, because the
step's attempts are the one retry layer. pydantic-ai is imported when the agent is first needed, so that a client need not have it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Unpack

from pydantic import TypeAdapter

from flujo_client.errors import ConfigurationError
from flujo_client.pipeline.step import AgentProcessors
from flujo_client.plan.identity import agent_traits, defaults_of, identify, model_name
from flujo_worker.agents.answer import AgentAnswer
from flujo_worker.agents.shaping import CallOptions, naming_options
from flujo_worker.concurrency.event_loop import is_async, of_limit
from flujo_worker.runtime.attempt_run import charge, in_thread, judging
from flujo_worker.runtime.call_args import CONTEXT, arranged

if TYPE_CHECKING:
    from pydantic_ai import Agent
    from pydantic_ai.models import Model

    from flujo_worker.agents.tool import AgentTool

    AnyModel = str | Model[Any] | Callable[[], Model[Any]]

MODEL_OPTIONS: Final = ("temperature", "top_p", "top_k", "max_tokens")


def make_agent_async(  # noqa: PLR0913 - the parameters are promised
    model: AnyModel,
    system_prompt: str = "",
    output_type: Any = str,
    max_retries: int | None = None,
    timeout: float | None = None,
    processors: AgentProcessors | None = None,
    auto_repair: bool = False,  # noqa: FBT001, FBT002 - likewise
    *,
    name: str | None = None,
    **options: Any,
) -> FlujoAgent:
    """Make an agent.

    The agent calls its model once. `max_retries`, `timeout` and `auto_repair` are defaults for steps that run it. They are read when a step
    is made with the agent object; an agent named by a reference only contributes its timeout.

    Args:
        model: a pydantic-ai model string such as `openai:gpt-4o`, `local:mock` for a model that answers with its prompt, a model object, or
            a function that makes one when it is needed.
        system_prompt: what the model receives before every input.
        output_type: the type of its answer: a type, a pydantic model, a `TypeAdapter`, or pydantic-ai's output markers.
        max_retries: further attempts of steps whose config sets none.
        timeout: seconds one call may take; also the timeout of steps whose config sets none.
        processors: functions that change every input and output of this agent, inside the step's own processors.
        auto_repair: a step without a `processing` block has its output repaired by AROS, as an empty block says. No model is used for
            repairs.
        name: for traces.
        options: `temperature`, `top_p`, `top_k` and `max_tokens`, which a step's own override; anything else is passed to
            `pydantic_ai.Agent` unchanged; `tools` may contain `AgentTool`s.

    Raises ConfigurationError: an invalid number, or model settings with retries.
    """
    at = f"agent {name or model!r}"
    if max_retries is not None and max_retries < 0:
        raise ConfigurationError(f"{at}: max_retries must be at least 0, got {max_retries}")
    if timeout is not None and not timeout > 0:
        raise ConfigurationError(f"{at}: timeout must be more than 0 seconds, got {timeout}")
    settings = options.get("model_settings")
    if isinstance(settings, dict) and settings.get("max_retries"):
        way_out = "give the step `max_retries`: its attempts are counted, budgeted and traced"
        what = f"{at}: model_settings.max_retries would try again inside an attempt"
        raise ConfigurationError(what, suggestion=way_out)
    given: dict[str, Any] = {
        "max_retries": max_retries,
        "timeout_s": timeout,
        "processing": {} if auto_repair else None,
    }
    own = {"options": options, "defaults": {key: value for key, value in given.items() if value is not None}}
    return FlujoAgent(model, system_prompt, output_type, name=name, processors=processors, **own)


class FlujoAgent:
    """An agent made by `make_agent_async`. It takes model options, and never the pipeline's context.

    Attributes:
        model_options: its own `temperature`, `top_p`, `top_k` and `max_tokens`, those that are set.
    """

    def __init__(
        self,
        model: AnyModel,
        system_prompt: str,
        output_type: Any,
        *,
        name: str | None,
        options: dict[str, Any],
        defaults: dict[str, Any],
        processors: AgentProcessors | None,
    ) -> None:
        self.model, self.system_prompt, self.name = model, system_prompt, name
        is_adapter = isinstance(output_type, TypeAdapter)
        self.output_type = output_type._type if is_adapter else output_type  # noqa: SLF001 - it is nowhere in public
        self.processors = processors
        self.model_options = {key: value for key in MODEL_OPTIONS if (value := options.get(key)) is not None}
        self._options = {key: value for key, value in options.items() if key not in MODEL_OPTIONS}
        self.__flujo_defaults__ = defaults

    @functools.cached_property
    def agent(self) -> Agent[Any, Any]:
        """Return the pydantic-ai agent behind this one."""
        from pydantic_ai import Agent

        model: Any = self.model() if inspect.isroutine(self.model) else self.model
        options = {"retries": 0, **self._options}
        if tools := self._options.get("tools"):
            options["tools"] = [each.as_tool() if _is_agent_tool(each) else each for each in tools]
        return Agent(
            model,
            output_type=self.output_type,
            system_prompt=self.system_prompt or (),
            name=self.name,
            defer_model_check=True,
            **options,
        )

    async def made(self) -> Agent[Any, Any]:
        """Return `agent`, made in a thread: that imports the library, and may call a function of the user's."""
        return self.agent if "agent" in vars(self) else await in_thread(lambda: self.agent)

    @property
    def deps_type(self) -> Any:
        """Return the type of the deps that its tools want; None if they want none."""
        return self._options.get("deps_type")

    @property
    def __flujo_identity__(self) -> dict[str, Any]:
        own: dict[str, Any] = {"options": sorted(self._options)}
        if self.model_options:
            own["settings"] = self.model_options
        if self.processors is not None:
            both = (self.processors.prompt_processors, self.processors.output_processors)
            own["processors"] = [[identify(each) for each in some] for some in both]
        if self.agent_tools:
            own["tools"] = [identify(each) for each in self.agent_tools]
        return {"agent": self.name, **agent_traits(self), **own}

    @property
    def agent_tools(self) -> list[AgentTool]:
        """Return the agents that this one has as tools."""
        return [each for each in self._options.get("tools") or () if _is_agent_tool(each)]

    @naming_options
    async def run(
        self, data: Any, *, instructions: str | None = None, deps: Any = None, **options: Unpack[CallOptions]
    ) -> AgentAnswer:
        """Call the model once with the step's input; anything but text is sent as JSON. `CallOptions` names the options.

        `instructions` are sent with the system prompt, for this call; `deps` are those of the agent's tools, of its `deps_type`.

        Raises:
            TimeoutError: the agent's own timeout is over.
            Exception: any exception of the model, the library or processors.
        """
        agent = await self.made()
        from flujo_worker.agents.model_call import ask_model

        given: dict[str, Any] = dict(options)
        own = {name: given.pop(name, None) for name in MODEL_OPTIONS}
        given["options"] = self.model_options | {name: value for name, value in own.items() if value is not None}
        processors, seconds = self.processors or AgentProcessors(), self.__flujo_defaults__.get("timeout_s")
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                data = await through(processors.prompt_processors, data)
                answer = await ask_model(agent, data, instructions=instructions, deps=deps, **given)
                return await _processed(processors.output_processors, answer)
        except TimeoutError as error:
            if seconds is not None and limit.expired():
                of_limit(error, seconds)
            raise


async def _processed(processors: Sequence[Any], answer: AgentAnswer) -> AgentAnswer:
    try:
        with judging():
            return replace(answer, output=await through(processors, answer.output))
    except Exception as error:
        charge(error, answer.usage)
        raise


class Front:
    """A wrapper that writes the message to an agent: steps, budgets and breakers look at the agent behind it."""

    agent: Any

    @property
    def __flujo_asks__(self) -> Any:
        return asker_of(self.agent)

    @property
    def __flujo_defaults__(self) -> Mapping[str, Any]:
        return defaults_of(self.agent)


async def through(processors: Sequence[Any], data: Any) -> Any:
    """Pass data through an agent's own processors, in order; they are given no context, as the agent has none."""
    for processor in processors:
        process = getattr(processor, "process", processor)
        call = arranged(process, (data, CONTEXT), context=lambda: None, options={})
        data = await call() if is_async(process) else await in_thread(call)
    return data


def _is_agent_tool(thing: Any) -> bool:
    return callable(getattr(thing, "as_tool", None))


def tools_of(agent: Any) -> Iterator[AgentTool]:
    """Find the agents that this one may call as tools, and those that they may call; for an agent that is not our own they are not known."""
    asker = asker_of(agent)
    for tool in asker.agent_tools if isinstance(asker, FlujoAgent) else ():
        yield tool
        yield from tools_of(tool.agent)


def asker_of(agent: Any) -> Any:
    """Return the agent by which this one asks its model, such as a `BaseAgent`'s; itself if it asks by none."""
    return getattr(agent, "__flujo_asks__", agent)


def library_agent(agent: Any) -> Any:
    """Return the library's agent by which this one asks its model; itself if it asks by none."""
    asker = asker_of(agent)
    return asker.agent if isinstance(asker, FlujoAgent) else asker


def model_of(agent: Any) -> str | None:
    """Return the name of the model that an agent asks, if it is known; a model that is made by a function is made for it."""
    return model_name(library_agent(agent))


def service_of(agent: Any) -> str | None:
    """Return the provider and model that an agent calls, such as `openai:gpt-5`; None if it calls none, or that is unknown, or the agent is invalid."""
    try:
        library = library_agent(agent)
        name, provider = model_name(library), getattr(getattr(library, "model", None), "system", None)
    except Exception:  # noqa: BLE001 - what makes a model, and what a model says of itself, is user code
        return None
    return f"{provider}:{name}" if provider and name and ":" not in name else name


def may_ask(agent: Any) -> bool:
    """Return whether an agent may have a model that `service_of` names, now or later."""
    try:
        return hasattr(library_agent(agent), "model")
    except Exception:  # noqa: BLE001 - likewise
        return True


def is_pydantic_agent(agent: Any) -> bool:
    """Return whether this is an agent of the library itself."""
    kinds = type(agent).__mro__
    return any(each.__name__ == "AbstractAgent" and each.__module__.startswith("pydantic_ai.") for each in kinds)


def asks_by_library(agent: Any) -> bool:
    """Return whether an agent asks its model through the library."""
    agent = asker_of(agent)
    return isinstance(agent, FlujoAgent) or is_pydantic_agent(agent)
