"""What an agent gave back, and what it spent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flujo_client.contract.outcome import NO_USAGE, Usage


@dataclass(frozen=True, slots=True)
class AgentAnswer:
    """An agent's output with its usage.

    Attributes:
        model: the model that answered, as its provider calls it.
        is_shaped: the output has been read and validated already, by the agent's own side.
    """

    output: Any
    usage: Usage = NO_USAGE
    model: str | None = None
    is_shaped: bool = False


@dataclass(frozen=True, slots=True)
class AgentResult(AgentAnswer):
    """What a `BaseAgent` returns: an answer that can also report that the agent could not do its task.

    What goes wrong around an agent (a provider that fails, a time that is over) is raised. An agent of yours whose `run` returns
    `success=False` fails the step's attempt as if it had raised an `AgentError` with `error`; an agent that calls it as its tool gets the error.

    Attributes:
        success: the agent did what it was asked.
        error: why not.
    """

    success: bool = True
    error: str | None = None
