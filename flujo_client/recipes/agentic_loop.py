"""The agentic loop: a planner decides what is done next, turn by turn, until it finishes.

Its body is the planner's step, a conditional on its command, and a step that records the turn: each turn, call and question is an attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import BaseModel

from flujo_client.contract.commands import COMMAND_SCHEMA
from flujo_client.contract.context import PipelineContext
from flujo_client.pipeline.agents import DeclaredAgent
from flujo_client.pipeline.authoring import under
from flujo_client.pipeline.conditional import ConditionalStep
from flujo_client.pipeline.container import aliases, names_findings
from flujo_client.pipeline.context_info import ContextInfo
from flujo_client.pipeline.human import HumanInTheLoopStep
from flujo_client.pipeline.loop import LoopStep
from flujo_client.pipeline.nested import TELL, ImportStep
from flujo_client.pipeline.pipeline import Body, Pipeline
from flujo_client.pipeline.step import BACKGROUND, AgentProcessors, Step
from flujo_client.plan import kinds
from flujo_client.recipes import agentic_protocol

PLANNER, ACT, RECORD = "planner", "act", "record"
"""The names of a turn's steps; a planner that is passed as a step has its own name."""
MAX_TURNS = 10
FAILURES = ("abort", TELL)


@aliases(planner_agent="planner", agent_registry="registry", max_iterations="max_loops")
@dataclass(frozen=True, eq=False, kw_only=True)
class AgenticLoopStep(LoopStep):
    """Let a planner run agents and ask people, one command per turn, until it finishes.

    The planner gets a mapping of `goal` (the loop's input), `agents` (their names), `turn`, `max_turns` and `command_log`: the turns so
    far, each with `turn`, `command` and `result`. It returns an `AgentCommand`; anything else fails the attempt, which is retried with
    the reason. Turns are appended to the context's `command_log`. The output is the final answer, or at `max_loops` the last result.

    Args:
        planner: an agent, as for a step, or a plain step; alias `planner_agent`.
        registry: what the planner may run, by name: agents, steps or pipelines; alias `agent_registry`. `ask_human`, `finish` and
            `unknown_agent` are reserved.
        max_loops: maximum turns; alias `max_iterations`.
        on_agent_failure: when an agent has failed permanently: `abort` fails the loop, `tell` passes the error to the planner as the turn's
            result.
        ask_expires_s: seconds to wait for a human answer; then the planner gets an error. Forever when None.
        fails_at_max: fail when `max_loops` is reached.
        loop_output_mapper: `(final_answer, context)`, returns the loop's output.
    """

    planner: Any
    registry: Mapping[str, Any]
    max_loops: int = MAX_TURNS
    on_agent_failure: str = "abort"
    ask_expires_s: float | None = None
    loop_body_pipeline: Body = field(init=False)
    exit_condition_callable: Callable[..., Any] = field(init=False)
    initial_input_to_loop_body_mapper: Callable[..., Any] | None = field(init=False)
    iteration_input_mapper: Callable[..., Any] | None = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        agents = self._agents()
        briefing = agentic_protocol.Briefing(tuple(agents), self.max_loops)
        steps = [_planning(self.planner), _acting(agents, self.ask_expires_s), Step(RECORD, agentic_protocol.record)]
        made = {
            "loop_body_pipeline": Pipeline(steps),
            "exit_condition_callable": agentic_protocol.is_finished,
            "initial_input_to_loop_body_mapper": briefing.first,
            "iteration_input_mapper": briefing.following,
        }
        for name, value in made.items():
            object.__setattr__(self, name, value)

    def findings(self, place: ContextInfo) -> Iterator[str]:
        yield from super().findings(place)
        yield from under("V-C1", place.lacks("the log of its turns", agentic_protocol.LOG))
        if isinstance(self.planner, Step | Pipeline) and not _is_plain(self.planner):
            yield f"planner, a {type(self.planner).__name__}, must be an agent or a plain step in the foreground"
        if self.on_agent_failure not in FAILURES:
            yield f"on_agent_failure {str(self.on_agent_failure)[:40]!r} must be one of {', '.join(FAILURES)}"
        given: Any = self.registry
        if not isinstance(given, Mapping) or not given:
            yield f"registry must be a mapping of agents, got {str(given)[:40]}"
        else:
            yield from (f"registry: {wrong}" for name in given for wrong in registry_findings(name))

    def _agents(self) -> dict[str, Body]:
        """Return the agents that can run, by name; `findings` reports the others."""
        given: Any = self.registry if isinstance(self.registry, Mapping) else {}
        return {name: self._agent(name, each) for name, each in given.items() if not any(registry_findings(name))}

    def _agent(self, name: str, given: Any) -> Body:
        body = given if isinstance(given, Step | Pipeline) else Step(name, given)
        returns_failure = self.on_agent_failure == TELL
        return ImportStep(name, pipeline=body, inherit_context=True, on_failure=TELL) if returns_failure else body


def make_agentic_loop_pipeline(
    planner_agent: Any,
    agent_registry: Mapping[str, Any],
    max_loops: int = MAX_TURNS,
    *,
    name: str = "agentic_loop",
    context_model: type[BaseModel] = PipelineContext,
    **options: Any,
) -> Pipeline:
    """Make a pipeline of one agentic loop; its input is the goal.

    Args:
        planner_agent: chooses the next command.
        agent_registry: what the planner may run, by name.
        max_loops: maximum turns.
        name: the name of the loop and of its runs.
        context_model: the model of the context, with a field `command_log`.
        options: further options of `AgenticLoopStep`.
    """
    loop = AgenticLoopStep(name, planner=planner_agent, registry=agent_registry, max_loops=max_loops, **options)
    return Pipeline([loop], name=name, context_model=context_model)


def registry_findings(name: Any) -> Iterator[str]:
    """Find what is wrong with an agent's name."""
    if not isinstance(name, str):
        yield f"{str(name)[:40]} is a {type(name).__name__}; an agent's name must be a text"
    elif name in (agentic_protocol.ASK, agentic_protocol.FINISH, agentic_protocol.UNKNOWN):
        yield f"'{name}' is reserved by the loop; give the agent another name"
    else:
        yield from names_findings("agent", [name])


def _is_plain(step: Any) -> bool:
    if not isinstance(step, Step) or step.spec is not kinds.STEP:
        return False
    is_in_background = getattr(step.config, "execution_mode", None) == BACKGROUND
    return not is_in_background and (step.fallback_step is None or _is_plain(step.fallback_step))


def _planning(planner: Any) -> Step:
    """Make the planner's step, or its fallback's: what it answers is read as a command."""
    step = planner if isinstance(planner, Step) else Step(PLANNER, planner)
    if not _is_plain(step):
        return step
    agent, own = step.agent, step.processors
    if isinstance(agent, DeclaredAgent) and agent.output_schema is None:
        agent = replace(agent, output_schema=COMMAND_SCHEMA)
    has_type = isinstance(agent, DeclaredAgent) or getattr(agent, "output_type", str) is not str
    return replace(
        step,
        agent=agent,
        processing={**({} if has_type else {"schema": COMMAND_SCHEMA}), **(step.processing or {})},
        processors=AgentProcessors(own.prompt_processors, [*own.output_processors, agentic_protocol.read_command]),
        fallback_step=None if step.fallback_step is None else _planning(step.fallback_step),
    )


def _acting(agents: Mapping[str, Body], ask_expires_s: float | None) -> ConditionalStep:
    expiry: dict[str, Any] = {}
    if ask_expires_s is not None:
        no_answer = {"error": f"no one answered within {ask_expires_s} s"}
        expiry = {"expires_s": ask_expires_s, "on_expiry": "default", "default": no_answer}
    registry = agentic_protocol.Registry(tuple(agents))
    own: dict[str, Body] = {
        agentic_protocol.ASK: HumanInTheLoopStep(agentic_protocol.ASK, agentic_protocol.question_of, **expiry),
        agentic_protocol.FINISH: Step(agentic_protocol.FINISH, agentic_protocol.answer_of),
        agentic_protocol.UNKNOWN: Step(agentic_protocol.UNKNOWN, registry.refuse),
    }
    return ConditionalStep(
        ACT,
        condition_callable=registry.path,
        branches={**agents, **own},
        branch_input_mapper=registry.given,
        branch_output_mapper=agentic_protocol.carried_out,
    )
