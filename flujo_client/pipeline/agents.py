"""Agents as declarations, from which workers make the live ones, and the faults of a step's agent. It must not know an agent library."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Union

from flujo_client.contract.providers import misspelt_provider, names_provider
from flujo_client.contract.suggestions import did_you_mean
from flujo_client.pipeline.annotations import declared_types, type_text
from flujo_client.pipeline.authoring import is_mock
from flujo_client.pipeline.function_code import signature_of
from flujo_client.pipeline.reference import found_by
from flujo_client.pipeline.step import Step, described
from flujo_client.plan.identity import asks_a_model, whole
from flujo_client.serial import digest, refused_type


def is_made_here(model: str) -> bool:
    """Return whether a model is `module:attribute`, a user's function that makes it, and not `provider:model`.

    A module without a dot must not have a provider's name, and its attribute must be a name of Python: `opnai:gpt-4o` is a misspelt provider.
    """
    module, colon, attribute = model.partition(":")
    if not colon or names_provider(model):
        return False
    return "." in module or all(each.isidentifier() for each in (module, *attribute.split(".")))


@dataclass(frozen=True, eq=False)
class DeclaredAgent:
    """An agent for `Step(agent=…)` that needs no module."""

    name: str
    """The name in traces."""
    model: str
    """The model, as `provider:model`, or as `module:attribute` of a function that makes it."""
    system_prompt: str = ""
    """The text that the model gets before every input."""
    output_schema: Mapping[str, Any] | None = None
    """The JSON Schema of the answer; None for text."""
    model_settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings sent with every call, such as `temperature`; a step's `config` takes precedence."""
    tools: tuple[str, ...] = ()
    """References to the functions that the agent may call."""

    @property
    def __flujo_identity__(self) -> dict[str, Any]:
        """Everything counts: another prompt or schema is another agent."""
        return {"declared": self.name, "model": self.model, "made_of": self.key}

    @cached_property
    def key(self) -> str:
        """Return a key that equal agents share; a worker reads it several times in an attempt."""
        made_of = (self.name, self.model, self.system_prompt, self.output_schema, self.model_settings, self.tools)
        return digest([whole(each) for each in made_of])

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeclaredAgent) and self.key == other.key


def agent_findings(agent: Any, allowed: Sequence[str]) -> Iterator[str]:
    """Find what is wrong with an agent itself, or with the reference to it."""
    agent, wrong = found_by(agent, allowed, "agent")
    if wrong:
        yield wrong
    elif is_mock(agent):
        yield "its agent is a mock, which no worker can rebuild"
    elif isinstance(agent, Step):
        yield f"its agent is the step '{agent.name}'; give that step's agent, or use that step instead of this one"
    elif not isinstance(agent, DeclaredAgent) and not (callable(agent) or callable(getattr(agent, "run", None))):
        yield f"its agent, a {type(agent).__name__}, is not callable and has no run method"
    elif inspect.isclass(agent):
        yield f"its agent is the class {agent.__name__}; give an instance"
    elif _takes_nothing(getattr(agent, "run", agent)):
        yield f"its agent, {described(agent)}, takes no argument, but is called with the output of the step before"


def model_findings(agent: Any) -> Iterator[str]:
    """Find a misspelt provider in the name of the model that an agent asks."""
    is_declared = isinstance(agent, DeclaredAgent)
    model = getattr(agent, "model", None) if is_declared or asks_a_model(agent) else None
    if isinstance(model, str) and not (is_declared and is_made_here(model)) and (wrong := misspelt_provider(model)):
        yield f"model {wrong}"


def parameter_findings(agent: Any, given: Collection[str]) -> Iterator[str]:
    """Find the required parameters of a step's function that nothing fills; `given` names the values that it gets in addition to its input."""
    function = getattr(agent, "run", agent)
    if not callable(function) or inspect.isclass(function) or asks_a_model(agent) or hasattr(agent, "__flujo_target__"):
        return
    signature = signature_of(function, follow_wrapped=False)
    for each in [*signature.parameters.values()][1:] if signature is not None else ():
        is_required = each.default is each.empty and each.kind not in _REST and each.name != "response_format"
        if is_required and (each.name not in given or each.kind is each.POSITIONAL_ONLY):
            yield f"parameter `{each.name}` of {described(agent)} has no default, and {_why_empty(each.name)}"


def output_findings(step: Step, agent: Any) -> Iterator[str]:
    """Return why no output of a step can be stored, by its agent's declared type; asked before a model is paid."""
    processors = (step.processors, getattr(agent, "processors", None))
    if any(getattr(each, "output_processors", None) for each in processors):  # which may make another type of it
        return
    declared = _outputs(getattr(agent, "output_type", None)) if agent is not None else Any
    if declared is None:
        declared = declared_types(agent).gives
    if (refused := refused_type(declared)) is not None:
        way_out = f": {refused.suggestion}" if refused.suggestion else ""
        yield f"its output type {type_text(declared)} cannot be stored: {refused.message}{way_out}"


def _outputs(declared: Any) -> Any:
    """Return the type that an agent's `output_type` asks for: that of its marker, of several any one."""
    declared = getattr(declared, "outputs", getattr(declared, "output", declared))
    if isinstance(declared, list | tuple) and declared:
        return Union[tuple(map(_outputs, declared))]  # noqa: UP007 - of types known only now
    return declared


def _why_empty(name: str) -> str:
    if name in _WAYS:
        return _WAYS[name]
    near = did_you_mean(name, tuple(_WAYS))
    return f"nothing fills it: a step gets its input, and by name {', '.join(_WAYS)}" + (f"; {near}" if near else "")


_LATER: Final = "the first attempt has none: give it a default"
_WAYS: Final = {
    "context": "this run has no context: give it one, or set the pipeline's context_model",
    "resources": "the pipeline has no resources: set its `resources`",
    "guidance": _LATER,
    "history": _LATER,
}
_REST: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _takes_nothing(function: Any) -> bool:
    signature, no_place = signature_of(function), (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    return signature is not None and all(each.kind in no_place for each in signature.parameters.values())
