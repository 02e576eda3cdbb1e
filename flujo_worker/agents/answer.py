"""An agent's answer and its usage."""

from typing import Any

from flujo_client.contract.outcome import NO_USAGE, Usage
from flujo_client.frozen import frozen


@frozen
class AgentAnswer:
    """An agent's output with its usage."""

    output: Any
    usage: Usage = NO_USAGE
    model: str | None = None
    """The model that answered, as its provider calls it."""
    is_shaped: bool = False
    """The output has been read and validated already, by the agent's own side."""
    finish_reason: str | None = None
    """Why the model stopped, in pydantic-ai's words; None where that is not known."""


@frozen
class AgentResult(AgentAnswer):
    """The answer of a `BaseAgent`, which can also report that the agent could not do its task.

    Errors around an agent (a provider that fails, a timeout) are raised. If your own agent's `run` returns `success=False` the step's
    attempt fails as if it had raised an `AgentError` with `error`; an agent that calls it as a tool gets the error.
    """

    success: bool = True
    error: str | None = None
