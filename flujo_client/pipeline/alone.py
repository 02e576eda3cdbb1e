"""Call an agent alone, for unit tests of a step. No engine is involved."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flujo_client.errors import MissingAgentError
from flujo_client.pipeline.annotations import typed_input
from flujo_client.serial import Resolver

if TYPE_CHECKING:
    from flujo_client.pipeline.step import Step


async def call_alone(step: Step, value: Any, named: Mapping[str, Any]) -> Any:
    """Call a step's agent with a value, and with those of the named values that it takes.

    Raises:
        MissingAgentError: there is none to call.
    """
    agent = Resolver(["*"])(step.agent) if isinstance(step.agent, str) else step.agent
    function = getattr(agent, "run", agent)
    if not callable(function):
        suggestion = "call `arun` on a step with a function or an agent; run others with flujo_worker.LocalEngine"
        raise MissingAgentError(f"step '{step.name}' has no agent that can be called here", suggestion=suggestion)
    given = function(typed_input(agent, value, step=step.name), **_taken(function, named))
    return await given if inspect.isawaitable(given) else given


def _taken(function: Any, named: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return dict(named)
    return {name: given for name, given in named.items() if name in parameters}
