"""The functions that the steps of an agentic loop's turn call. The context holds all turns so far, so none of them decodes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pydantic

from flujo_client.attempt_info import current_attempt
from flujo_client.contract.commands import COMMAND, AgentCommand, ExecutedCommandLog, PlannerBrief
from flujo_client.contract.context import StoredContext
from flujo_client.contract.suggestions import closest_match
from flujo_client.errors import AgentIOValidationError
from flujo_client.pipeline.function_marks import appends_to, reads_answer, with_stored_context, without_context
from flujo_client.pipeline.step import Step
from flujo_client.serial import encode, reference

ASK, FINISH, UNKNOWN = "ask_human", "finish", "unknown_agent"
"""The paths that a command may take apart from the agents'."""
LOG: Final = "command_log"

_LONGEST: Final = 200
_TURN: Final = reference(ExecutedCommandLog)
_TURN_FIELDS: Final = frozenset(ExecutedCommandLog.model_fields)
_COMMANDS: Final = (
    'a command is {"type": "run_agent", "agent_name": …, "input_data": …}, {"type": "ask_human", "question": …} or '
    '{"type": "finish", "final_answer": …}'
)


@dataclass(frozen=True)
class Briefing:
    """Make a planner's input, turn by turn."""

    agents: tuple[str, ...]
    max_turns: int

    @without_context
    def first(self, goal: Any, _context: Any) -> PlannerBrief:
        return self._of(goal, 1)

    @without_context
    def following(self, _result: Any, _context: Any, index: int, *, original_input: Any) -> PlannerBrief:
        return self._of(original_input, index + 1)

    def _of(self, goal: Any, turn: int) -> PlannerBrief:
        return PlannerBrief(goal=goal, agents=list(self.agents), turn=turn, max_turns=self.max_turns)


def gets_turns(step: Step) -> bool:
    """Return whether a step is a planner's."""
    return read_command in step.processors.output_processors


def with_turns(given: Any, context: StoredContext | None) -> Any:
    """Return a step's input; a planner's with the turns of this execution of its loop.

    An earlier run's may have the loop's address too, where its context was passed on: as many as there were are this one's.
    """
    if not isinstance(given, PlannerBrief):
        return given
    log = [] if given.turn == 1 or context is None else _turns(context, context.items(LOG))
    own = [each.shown() for each in log if each.loop == log[-1].loop]
    return {**dict(given), LOG: own[-(given.turn - 1) :] if own else []}


@reads_answer
def read_command(output: Any) -> AgentCommand:
    """Read a planner's answer: text, data, or a model of the user's own with a command's fields; raises AgentIOValidationError."""
    try:
        if isinstance(output, str):
            return COMMAND.validate_json(output)
        return COMMAND.validate_python(output, from_attributes=True)
    except pydantic.ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False, include_input=False)
    # A place begins with the command's type.
    pointers = ["".join(f"/{part}" for part in each["loc"][1:]) for each in wrong]
    places = zip(pointers, wrong, strict=True)
    problems = "; ".join(f"at {pointer or '(root)'}: {each['msg'][:_LONGEST]}" for pointer, each in places)
    raise AgentIOValidationError(f"it is not a command: {problems}; {_COMMANDS}", pointer=pointers[0])


@dataclass(frozen=True)
class Registry:
    """The agents that a planner may have run."""

    names: tuple[str, ...]

    @without_context
    def path(self, answer: Any, _context: Any) -> str:
        """Return which path a command takes; a plugin may have put another one in its place."""
        command = read_command(answer)
        if command.type != "run_agent":
            return command.type
        return command.agent_name if command.agent_name in self.names else UNKNOWN

    @without_context
    def given(self, answer: Any, _context: Any) -> Any:
        """Return what comes in on a command's path."""
        command = read_command(answer)
        if command.type == "run_agent":
            return command.input_data if command.agent_name in self.names else command.agent_name
        return command.question if command.type == "ask_human" else command.final_answer

    def refuse(self, named: str) -> dict[str, Any]:
        """Return the planner's error for an unknown agent, with the names of those there are."""
        refusal = {"error": f"there is no agent '{named[:_LONGEST]}'", "agents": list(self.names)}
        near = closest_match(named, self.names)
        return refusal | ({"nearest": near} if near else {})


@without_context
def question_of(question: str, _context: Any) -> str:
    return question


def answer_of(answer: Any) -> Any:
    return answer


@without_context
def carried_out(result: Any, _path: Any, _context: Any, *, original_input: Any) -> dict[str, Any]:
    """Combine a command and its result."""
    return {"command": read_command(original_input), "result": result}


@appends_to(LOG)
def record(carried: dict[str, Any]) -> ExecutedCommandLog:
    """Write a turn down; its result is the step's output."""
    attempt = current_attempt()
    loop, _, turn = ("#0" if attempt is None else attempt.address).rpartition("#")
    return ExecutedCommandLog(turn=int(turn), loop=loop, **carried)


@with_stored_context
def is_finished(_result: Any, context: StoredContext) -> bool:
    """Return whether the last turn was to be the last one."""
    return _turns(context, context.newest(LOG))[-1].read().command.type == FINISH


@dataclass(frozen=True)
class _StoredTurn:
    """A turn as the context stores it, decoded no further than it is needed: a log has hundreds."""

    tree: Any
    context: StoredContext

    @property
    def loop(self) -> str:
        fields = self._fields()
        return self.read().loop if fields is None else str(fields["loop"])

    def read(self) -> ExecutedCommandLog:
        return ExecutedCommandLog.model_validate(self.context.part(self.tree))

    def shown(self) -> dict[str, Any]:
        """Return the turn as a planner gets it."""
        fields = self._fields()
        if fields is not None:
            turn, command, result = fields["turn"], fields["command"]["v"], fields["result"]
            if self.context.part(command) is command and self.context.part(result) is result:
                return {"turn": turn, "command": command, "result": result}
        return self.read().model_dump(exclude={"loop"})

    def _fields(self) -> dict[str, Any] | None:
        """Return the stored fields; None for a turn that a step of the user's wrote in another form."""
        tree = self.tree
        is_ours = isinstance(tree, dict) and tree.get("c") == _TURN and tree["v"].keys() == _TURN_FIELDS
        return tree["v"] if is_ours else None


def _turns(context: StoredContext, items: list[Any] | None) -> list[_StoredTurn]:
    """Return stored turns; of a model that has the log in another form, all of them."""
    if items is None:
        items = encode(list(getattr(context.live(), LOG)), path=LOG)
    return [_StoredTurn(each, context) for each in items]
