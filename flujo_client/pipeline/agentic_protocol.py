"""What happens in a turn of an agentic loop, as the functions that its steps ask.

What the planner gets, how its command is read, where that leads, and how the turn is written down. Pure but for `record`, which asks in which
attempt it runs. In: what the engine hands to a user's function; out: values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pydantic

from flujo_client.attempt_info import current_attempt
from flujo_client.contract.commands import COMMAND, ExecutedCommandLog
from flujo_client.contract.suggestions import closest_match
from flujo_client.errors import AgentIOValidationError
from flujo_client.pipeline.answer_readers import reads_answer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flujo_client.contract.commands import AgentCommand

ASK, FINISH, UNKNOWN = "ask_human", "finish", "unknown_agent"
"""The paths that a command may take apart from the agents'."""
LOG: Final = "command_log"

_LONGEST: Final = 200
_COMMANDS: Final = (
    'a command is {"type": "run_agent", "agent_name": …, "input_data": …}, {"type": "ask_human", "question": …} or '
    '{"type": "finish", "final_answer": …}'
)


@dataclass(frozen=True)
class Briefing:
    """What a planner gets, turn by turn.

    Args:
        agents: the names of those it may have run.
        max_turns: turns at most.
    """

    agents: tuple[str, ...]
    max_turns: int

    def first(self, goal: Any, _context: Any) -> dict[str, Any]:
        """Make the first turn's input."""
        return self._of(goal, 1, [])

    def following(self, _result: Any, context: Any, index: int, *, original_input: Any) -> dict[str, Any]:
        """Make a later turn's input, with the turns of this execution of the loop: as many as there were, the last of those with its address.

        An earlier run's may have that address too, where its context was handed on.
        """
        log = _turns(context)
        own = [each.model_dump(exclude={"loop"}) for each in log if each.loop == log[-1].loop]
        return self._of(original_input, index + 1, own[-index:])

    def _of(self, goal: Any, turn: int, log: list[dict[str, Any]]) -> dict[str, Any]:
        return {"goal": goal, "agents": list(self.agents), "turn": turn, "max_turns": self.max_turns, LOG: log}


@reads_answer
def read_command(output: Any) -> AgentCommand:
    """Read a planner's answer: text, data, or a model of the user's own with a command's fields.

    Raises:
        AgentIOValidationError: it is not a command; the next attempt gets the places and what is wrong there.
    """
    try:
        if isinstance(output, str):
            return COMMAND.validate_json(output)
        return COMMAND.validate_python(output, from_attributes=True)
    except pydantic.ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False, include_input=False)
    problems = "; ".join(f"at {_pointer(each['loc']) or '(root)'}: {each['msg'][:_LONGEST]}" for each in wrong)
    raise AgentIOValidationError(f"it is not a command: {problems}; {_COMMANDS}", pointer=_pointer(wrong[0]["loc"]))


def _pointer(place: Sequence[str | int]) -> str:
    """Write a place as a JSON pointer; pydantic's begins with the command's type."""
    return "".join(f"/{part}" for part in place[1:])


@dataclass(frozen=True)
class Registry:
    """The agents that a planner may have run.

    Args:
        names: theirs.
    """

    names: tuple[str, ...]

    def path(self, answer: Any, _context: Any) -> str:
        """Say which path a command takes; a plugin may have put another one in its place."""
        command = read_command(answer)
        if command.type != "run_agent":
            return command.type
        return command.agent_name if command.agent_name in self.names else UNKNOWN

    def given(self, answer: Any, _context: Any) -> Any:
        """Return what comes in on a command's path."""
        command = read_command(answer)
        if command.type == "run_agent":
            return command.input_data if command.agent_name in self.names else command.agent_name
        return command.question if command.type == "ask_human" else command.final_answer

    def refuse(self, named: str) -> dict[str, Any]:
        """Tell the planner that there is no such agent, and which there are."""
        refusal = {"error": f"there is no agent '{named[:_LONGEST]}'", "agents": list(self.names)}
        near = closest_match(named, self.names)
        return refusal | ({"nearest": near} if near else {})


def question_of(question: str, _context: Any) -> str:
    """Return the question for a person."""
    return question


def answer_of(answer: Any) -> Any:
    """Return the final answer."""
    return answer


def carried_out(result: Any, _path: Any, _context: Any, *, original_input: Any) -> dict[str, Any]:
    """Put a command and what came of it together."""
    return {"command": read_command(original_input), "result": result}


def record(carried: dict[str, Any], *, context: Any) -> Any:
    """Write a turn down, and pass its result on."""
    attempt = current_attempt()
    loop, _, turn = ("#0" if attempt is None else attempt.address).rpartition("#")
    entry = ExecutedCommandLog(turn=int(turn), loop=loop, **carried)
    context.command_log = [*context.command_log, entry]
    return entry.result


def is_finished(_result: Any, context: Any) -> bool:
    """Tell whether the last turn was to be the last one."""
    return _turns(context)[-1].command.type == FINISH


def _turns(context: Any) -> list[ExecutedCommandLog]:
    return [ExecutedCommandLog.model_validate(each) for each in context.command_log]
