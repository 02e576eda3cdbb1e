"""The commands of an agentic loop's planner, and the record of each turn.

It must not carry a command out: that is the loop's part. In: what a planner answered; out: one of three commands, or what is wrong.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, Field, TypeAdapter

from flujo_client.sizes import MAX_QUESTION


class RunAgentCommand(BaseModel):
    """Run an agent of the registry.

    Attributes:
        agent_name: its name in the registry.
        input_data: its input.
    """

    type: Literal["run_agent"] = "run_agent"
    agent_name: str = Field(min_length=1)
    input_data: Any


class AskHumanCommand(BaseModel):
    """Ask a person; the run waits for the answer without a worker.

    Attributes:
        question: the question.
    """

    type: Literal["ask_human"] = "ask_human"
    question: str = Field(pattern=r"\S", max_length=MAX_QUESTION)


class FinishCommand(BaseModel):
    """End the loop.

    Attributes:
        final_answer: the loop's output.
    """

    type: Literal["finish"] = "finish"
    final_answer: Any


AgentCommand: TypeAlias = Annotated[RunAgentCommand | AskHumanCommand | FinishCommand, Field(discriminator="type")]
"""Any of the three, distinguished by `type`."""

COMMAND: Final[TypeAdapter[RunAgentCommand | AskHumanCommand | FinishCommand]] = TypeAdapter(AgentCommand)
"""Reads a command out of data or JSON."""


class ExecutedCommandLog(BaseModel):
    """One turn of an agentic loop, as the context's `command_log` holds it.

    Attributes:
        turn: counted from 1.
        command: the planner's command.
        result: its result: the agent's output, the person's answer, the final answer; for an agent that is unknown or failed, a mapping
            with `error`.
        loop: the loop's address, unique in the run.
    """

    turn: int
    command: AgentCommand
    result: Any = None
    loop: str = ""


class PlannerBrief(BaseModel):
    """A planner's input at a turn, as stored and sent: without the previous turns, which are in the context.

    Attributes:
        goal: the loop's input.
        agents: the names of the agents it may run.
        turn: counted from 1.
        max_turns: the maximum of turns.
    """

    goal: Any
    agents: list[str]
    turn: int
    max_turns: int


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
