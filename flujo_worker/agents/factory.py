"""`make_agent_async`: an agent on pydantic-ai that a step can run (M-032, M-046).

The agent makes one call per attempt: the library's own output retries are off, because the step's attempts are the one retry
layer (C-37). pydantic-ai is imported when the agent is first needed, so that a client can import a pipeline's module without it.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

import orjson

from flujo_client.pipeline.identity import agent_traits, identify, model_name
from flujo_client.serial import safe_serialize
from flujo_worker.agents.answer import Answer
from flujo_worker.agents.pricing import require_price, usage_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pydantic_ai import Agent
    from pydantic_ai.agent import AbstractAgent
    from pydantic_ai.models import Model

    from flujo_worker.agents.shaping import Shaping
    from flujo_worker.agents.tool import AgentTool


def make_agent_async(
    model: str | Model[Any] | Callable[[], Model[Any]],
    system_prompt: str = "",
    output_type: Any = str,
    *,
    name: str | None = None,
    **options: Any,
) -> FlujoAgent:
    """Make an agent.

    Args:
        model: a pydantic-ai model string such as `openai:gpt-4o`, a model object, or a function that makes one when it is needed.
        system_prompt: what the agent is told before every input.
        output_type: what it answers with: a type, a pydantic model, or pydantic-ai's output markers.
        name: for traces.
        options: passed on to `pydantic_ai.Agent` as they are; `tools` may hold `AgentTool`s too.
    """
    return FlujoAgent(model, system_prompt, output_type, name=name, options=options)


class FlujoAgent:
    """An agent made by `make_agent_async`. It takes model options, and never the pipeline's context (C-25)."""

    def __init__(
        self,
        model: str | Model[Any] | Callable[[], Model[Any]],
        system_prompt: str,
        output_type: Any,
        *,
        name: str | None,
        options: dict[str, Any],
    ) -> None:
        self.model, self.system_prompt, self.output_type, self.name = model, system_prompt, output_type, name
        self._options = options

    @functools.cached_property
    def agent(self) -> Agent[Any, Any]:
        """The pydantic-ai agent behind this one."""
        from pydantic_ai import Agent

        model: Any = self.model() if inspect.isroutine(self.model) else self.model
        return Agent(
            model,
            output_type=self.output_type,
            system_prompt=self.system_prompt or (),
            name=self.name,
            defer_model_check=True,
            **{"retries": 0, **self._options, **self._tools},
        )

    @property
    def __flujo_identity__(self) -> dict[str, Any]:
        tools = [identify(each) for each in self.agent_tools]
        offered = {"tools": tools} if tools else {}
        return {"agent": self.name, **agent_traits(self), "options": sorted(self._options), **offered}

    @property
    def agent_tools(self) -> list[AgentTool]:
        """The agents that are offered to this one as tools."""
        return [each for each in self._options.get("tools") or () if _is_agent_tool(each)]

    @property
    def _tools(self) -> dict[str, Any]:
        """The tools as the library wants them: agents that are offered as tools are made into its own."""
        given = self._options.get("tools")
        made = [each.as_tool() if _is_agent_tool(each) else each for each in given or ()]
        return {"tools": made} if given else {}

    async def run(
        self,
        data: Any,
        *,
        guidance: str | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        max_tokens: int | None = None,
        shaping: Shaping | None = None,
    ) -> Answer:
        """Ask the model once.

        Args:
            data: the step's input; anything but text is sent as JSON.
            guidance: why the attempt before this one failed, told to the model after the input.
            temperature: sent, as the three below, as the library's model settings (C-36).
            top_p: likewise.
            top_k: likewise.
            max_tokens: likewise.
            shaping: how the step wants its output asked for and read.
        """
        options = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "max_tokens": max_tokens}
        return await ask(self.agent, data, guidance=guidance, options=options, shaping=shaping)


def _is_agent_tool(thing: Any) -> bool:
    return callable(getattr(thing, "as_tool", None))


def tools_of(agent: Any) -> Iterator[AgentTool]:
    """Find the agents that this one may call as tools, and those that they may call; of an agent that is not our own nobody knows."""
    asker = asker_of(agent)
    for tool in asker.agent_tools if isinstance(asker, FlujoAgent) else ():
        yield tool
        yield from tools_of(tool.agent)


def asker_of(agent: Any) -> Any:
    """Give the agent by which this one asks its model, such as a `BaseAgent`'s; itself if it asks by none."""
    return getattr(agent, "__flujo_asks__", agent)


def model_of(agent: Any) -> str | None:
    """Name the model that an agent asks, as far as it says; a model that is made by a function is made for it."""
    agent = asker_of(agent)
    return model_name(agent.agent if isinstance(agent, FlujoAgent) else agent)


def system_prompt_of(agent: Any) -> str | None:
    """Give what an agent's model is told before every input, as far as that is written out; None where nothing is."""
    agent = asker_of(agent)
    prompts = getattr(agent, "system_prompt" if isinstance(agent, FlujoAgent) else "_system_prompts", None)
    texts = [prompts] if isinstance(prompts, str) else prompts if isinstance(prompts, (list, tuple)) else ()
    return "\n\n".join(each for each in texts if isinstance(each, str)) or None


def service_of(agent: Any) -> str | None:
    """Name provider and model that an agent asks, such as `openai:gpt-5`; None for one that asks none, or does not say.

    What is wrong with an agent shows when it is called, so here it only has no name.
    """
    agent = asker_of(agent)
    try:
        name = model_of(agent)
        model = getattr(agent.agent if isinstance(agent, FlujoAgent) else agent, "model", None)
        provider = getattr(model, "system", None)
    except Exception:  # noqa: BLE001 - what makes a model, and what a model says of itself, is user code
        return None
    return f"{provider}:{name}" if provider and name and ":" not in name else name


def is_pydantic_agent(agent: Any) -> bool:
    """Tell whether this is an agent of the library itself."""
    return any(
        base.__module__.startswith("pydantic_ai.") and base.__name__ == "AbstractAgent" for base in type(agent).__mro__
    )


def asks_by_library(agent: Any) -> bool:
    """Tell whether an agent asks its model through the library."""
    agent = asker_of(agent)
    return isinstance(agent, FlujoAgent) or is_pydantic_agent(agent)


async def ask(
    agent: AbstractAgent[Any, Any],
    data: Any,
    *,
    guidance: str | None,
    options: dict[str, Any],
    shaping: Shaping | None = None,
) -> Answer:
    """Run a pydantic-ai agent once; what it spent is on the answer, or on the exception as `flujo_usage`.

    Args:
        agent: who is asked.
        data: as for `FlujoAgent.run`.
        guidance: likewise.
        options: model settings; None is not set.
        shaping: how the output is asked for and read; without it the agent runs as its author made it.

    Raises:
        PricingNotConfiguredError: costs are strict and the model has no price; it is not asked.
    """
    from pydantic_ai.settings import ModelSettings
    from pydantic_ai.usage import RunUsage

    require_price(agent.model)
    spent = RunUsage()
    settings = ModelSettings(**{key: value for key, value in options.items() if value is not None})  # type: ignore[typeddict-item]
    run = functools.partial(agent.run, prompt_of(data, guidance), model_settings=settings, usage=spent)
    try:
        result, is_shaped = await _run(agent, run, settings, shaping)
    except Exception as error:
        error.flujo_usage = usage_of(spent, asked=model_name(agent))  # type: ignore[attr-defined]
        raise
    usage = usage_of(spent, result.response, model_name(agent))
    return Answer(result.output, usage, model=result.response.model_name, is_shaped=is_shaped)


async def _run(agent: Any, run: Callable[..., Any], settings: Mapping[str, Any], shaping: Shaping | None) -> Any:
    if shaping is None:
        return await run(), False
    from flujo_worker.agents.structured import run_shaped

    return await run_shaped(agent, shaping, settings, run)


def prompt_of(data: Any, guidance: str | None) -> str:
    """Write what a model is asked: a text as it is, anything else as JSON, and after it why the attempt before was not accepted."""
    text = data if isinstance(data, str) else orjson.dumps(safe_serialize(data), option=orjson.OPT_INDENT_2).decode()
    return text if guidance is None else f"{text}\n\nYour previous answer was not accepted: {guidance}"
