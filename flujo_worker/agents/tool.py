"""An agent as another agent's tool: one call in, its result out, as data. pydantic-ai and a checker are imported only when a worker needs them."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack

from pydantic_core import SchemaValidator, core_schema

from flujo_client.errors import ConfigurationError
from flujo_client.frozen import frozen
from flujo_client.plan.identity import agent_name, identify
from flujo_worker.agents.answer import AgentAnswer
from flujo_worker.agents.contract import INPUT_INVALID, OUTPUT_INVALID, Contract, Judgement, refused
from flujo_worker.agents.factory import Front
from flujo_worker.agents.previews import AGENT_TOOL
from flujo_worker.agents.shaping import CallOptions, naming_options
from flujo_worker.runtime.call_args import unwrap

if TYPE_CHECKING:
    from pydantic_ai import Tool

RESERVED: Final = ("task", "run_identifier", "expected_outputs", "context", "output_contract_schema")
"""The arguments of a call that are not part of the sub-agent's context."""

_TASK: Final = {"type": "string", "description": "What the agent should do, in a sentence or more."}
_CONTEXT: Final = {
    "type": "object",
    "description": "What the agent should know, by name; the other arguments are added to it, and replace entries that have the same name.",
    "additionalProperties": True,  # explicit, because some providers default it to false
}


@frozen
class AcceptedCall:
    """A sub-agent's task."""

    task: str
    context: dict[str, Any]
    """A copy of everything else that the caller passed; the run's own context is not part of it."""
    options: Mapping[str, Any]
    """Passed on to a sub-agent that takes them by name."""
    dropped: tuple[str, ...] = ()
    """JSON pointers of the caller's values that the contract does not know."""


class AgentTool(Front):
    """Offers an agent to others as a tool, or to a step as its agent.

    Args:
        agent: the sub-agent: anything that a step could run. One that takes `context` gets the task and the context separately; any other
            gets one prompt.
        name: overrides the agent's name; the tool is called `run_<name>`.
        description: what the agent does, sent to the calling model.
        input_schema: the JSON Schema of the context, or the path of a file that holds it. A value that does not fit is rejected as data,
            before the agent is called.
        output_schema: likewise for the agent's output.
        strict: also reject properties that a contract does not know; otherwise they are dropped if nothing else is wrong.

    Raises ConfigurationError: it is not an agent, providers do not accept the tool's name, or a contract is invalid.
    """

    def __init__(
        self,
        agent: Any,
        *,
        name: str | None = None,
        description: str | None = None,
        input_schema: Mapping[str, Any] | Path | None = None,
        output_schema: Mapping[str, Any] | Path | None = None,
        strict: bool = False,
    ) -> None:
        if not (callable(agent) or callable(getattr(agent, "run", None))):
            way_out = "give a callable, or an object with `run`"
            raise ConfigurationError(f"AgentTool: a {type(agent).__name__} is not an agent", suggestion=way_out)
        self.agent, self.strict = agent, strict
        self.name = f"run_{_name_of(agent, name)}"
        self._does = description or f"Hands a task to the agent `{self.name.removeprefix('run_')}`."
        self.input = None if input_schema is None else Contract(input_schema, what=f"{self.name}: input_schema")
        what = f"{self.name}: output_schema"
        self.output = None if output_schema is None else Contract(output_schema, what=what, error=OUTPUT_INVALID)
        described = self.input.schema.get("properties") or {} if self.input is not None else {}
        if clash := [key for key in RESERVED if key in described]:
            what = f"{self.name}: input_schema has the property '{clash[0]}', which never reaches the context"
            way_out = f"the contract describes the context only; these names are a call's own: {', '.join(RESERVED)}"
            raise ConfigurationError(what, suggestion=way_out)

    @property
    def output_type(self) -> Any:
        """Return what the agent declares to answer with; `str` where it declares nothing."""
        from flujo_worker.aros.typed import structured_type

        return structured_type(unwrap(self.agent)) or str

    @property
    def __flujo_identity__(self) -> dict[str, Any]:
        hashes = {key: each.hash for key, each in (("input", self.input), ("output", self.output)) if each is not None}
        return {"tool": self.name, "agent": identify(self.agent), "strict": self.strict, **hashes}

    @property
    def description(self) -> str:
        """Return the description for the calling model, with the required inputs."""
        required = self.input.required if self.input is not None else []
        listed = f"REQUIRED INPUT (as separate arguments, or in `context`): {', '.join(required)}"
        return f"{self._does}\n\n{listed}" if required else self._does

    @property
    def parameters(self) -> dict[str, Any]:
        """Return the JSON Schema of the arguments: the task, and each property of the contract with its description."""
        known = self.input.properties if self.input is not None else {}
        definitions = self.input.definitions if self.input is not None else {}
        properties = {"task": _TASK, **known, "context": _CONTEXT}
        return copy.deepcopy({"type": "object", "properties": properties, "required": ["task"], **definitions})

    async def execute(self, /, **kwargs: Any) -> dict[str, Any]:
        """Call the agent.

        Args:
            kwargs: `task`; optionally `context`, `run_identifier`, `expected_outputs` and `output_contract_schema`; all others are added to
                the context, and replace entries with the same name.

        Returns:
            `{"success": True, "output": …}`, or the eight keys of a rejection: of the input, before the agent is called, or of the output;
            or `success` False with the `error` that the agent reports by an `AgentResult` or an `AgentError`.

        Raises Exception: any exception of the agent, unchanged, including pauses, aborts and limits.
        """
        from flujo_worker.agents.sub_agent import execute

        return await execute(self, kwargs)

    @naming_options
    async def run(self, data: Any, **options: Unpack[CallOptions]) -> AgentAnswer:
        """Call the agent for a step, with the `CallOptions` that it takes.

        The input is a mapping or a model with the arguments of `execute`, or only the task as a text.

        Raises:
            NonRetryableError: the input is rejected.
            AgentIOValidationError: the output is rejected.
            Exception: any exception of the agent, unchanged.
        """
        from flujo_worker.agents.sub_agent import run

        if unknown := options.keys() - CallOptions.__annotations__.keys():
            raise TypeError(f"AgentTool.run takes no {', '.join(sorted(unknown))}")
        return await run(self, data, options)

    def as_tool(self) -> Tool[Any]:
        """Make a pydantic-ai tool of it. `make_agent_async(tools=[…])` does that for you."""
        from pydantic_ai import Tool

        tool = Tool.from_schema(self.execute, self.name, self.description, self.parameters)
        tool.function_schema.validator = _ARGUMENTS
        tool.metadata = {AGENT_TOOL: self.name}
        return tool

    def accept(self, given: Mapping[str, Any]) -> AcceptedCall | dict[str, Any]:
        """Make of a call what the agent is asked, or the refusal of it."""
        task, explicit = given.get("task"), given.get("context")
        extras = {key: value for key, value in given.items() if key not in RESERVED}
        if explicit is not None and not isinstance(explicit, Mapping):
            return self._refused(f"{type(explicit).__name__} is not of type 'object'", "context", extras)
        context = copy.deepcopy({**(explicit or {}), **extras})
        if "task" not in given:
            return self._refused("'task' is a required property", None, context)
        if not isinstance(task, str) or not task.strip():
            return self._refused("'task' must be a text that says what to do", "task", context)
        judged = Judgement(context) if self.input is None else self.input.judge(context, strict=self.strict)
        if judged.refusal is not None:
            return dict(judged.refusal)
        options = {key: given[key] for key in RESERVED if key in given and key not in ("task", "context")}
        return AcceptedCall(task, judged.value, options, tuple(judged.dropped))

    def conclude(self, output: Any) -> Judgement:
        """Judge what the agent answered; under a contract it becomes plain data."""
        if self.output is None:
            return Judgement(output)
        return self.output.judge(self.output.data_in(output), strict=self.strict)

    def _refused(self, message: str, wrong: str | None, context: Mapping[str, Any]) -> dict[str, Any]:
        """Refuse a call because of its arguments; the refusal lists all that is missing."""
        required = ["task", *(self.input.required if self.input is not None else ())]
        missing = [name for name in required if name not in context and (name != "task" or wrong is None)]
        path = [] if wrong is None else [wrong]
        return refused(INPUT_INVALID, message, path, required, missing, context, lacks=wrong is None)


_ARGUMENTS: Final = SchemaValidator(
    core_schema.no_info_plain_validator_function(lambda given: given if isinstance(given, dict) else {"task": given})
)
"""A model's argument that is not an object is read as the task: it is accepted or rejected as one."""


def _name_of(agent: Any, name: str | None) -> str:
    name = name or agent_name(agent)
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,60}", name):
        way_out = "pass name=: 1 to 60 letters, digits, '_' and '-', which providers accept"
        raise ConfigurationError(f"'{name}' cannot be part of a tool's name", suggestion=way_out)
    return name
