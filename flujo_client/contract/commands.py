"""The commands of an agentic loop's planner, and the record of each turn.

It must not carry a command out: that is the loop's part. In: what a planner answered; out: one of three commands, or what is wrong.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, Field, TypeAdapter

from flujo_client.sizes import MAX_QUESTION


class RunAgentCommand(BaseModel):
    """Run an agent of the registry."""

    type: Literal["run_agent"] = "run_agent"
    agent_name: str = Field(min_length=1)
    """The agent's name in the registry."""
    input_data: Any
    """The agent's input."""


class AskHumanCommand(BaseModel):
    """Ask a person; the run waits for the answer without a worker."""

    type: Literal["ask_human"] = "ask_human"
    question: str = Field(pattern=r"\S", max_length=MAX_QUESTION)
    """The question."""


class FinishCommand(BaseModel):
    """End the loop."""

    type: Literal["finish"] = "finish"
    final_answer: Any
    """The loop's output."""


AgentCommand: TypeAlias = Annotated[RunAgentCommand | AskHumanCommand | FinishCommand, Field(discriminator="type")]
"""Any of the three, distinguished by `type`."""

COMMAND: Final[TypeAdapter[RunAgentCommand | AskHumanCommand | FinishCommand]] = TypeAdapter(AgentCommand)
"""Reads a command out of data or JSON."""


class ExecutedCommandLog(BaseModel):
    """One turn of an agentic loop, as the context's `command_log` holds it."""

    turn: int
    """Counted from 1."""
    command: AgentCommand
    """The planner's command."""
    result: Any = None
    """Its result: the agent's output, the person's answer, the final answer; for an agent that is unknown or failed, a mapping with
    `error`."""
    loop: str = ""
    """The loop's address, unique in the run."""


class PlannerBrief(BaseModel):
    """A planner's input at a turn, as stored and sent: without the previous turns, which are in the context."""

    goal: Any
    """The loop's input."""
    agents: list[str]
    """The names of the agents it may run."""
    turn: int
    """Counted from 1."""
    max_turns: int
    """The maximum number of turns."""


COMMAND_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "description": "What is done next.",
    "properties": {
        "type": {
            "enum": ["run_agent", "ask_human", "finish"],
            "description": "run_agent: an agent does something; ask_human: a person is asked; finish: this was the last turn.",
        },
        "agent_name": {"type": ["string", "null"], "description": "For run_agent: which of the agents."},
        "input_data": {"description": "For run_agent: what the agent gets."},
        "question": {"type": ["string", "null"], "description": "For ask_human: what the person reads."},
        "final_answer": {"description": "For finish: the result."},
    },
    "required": ["type"],
}
"""The schema of a model's answer: flat, because not every provider accepts a choice of objects.

It is written by hand, because it is a part of plans, which must not depend on the version of pydantic.
"""
