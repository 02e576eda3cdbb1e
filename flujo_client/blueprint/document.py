"""Convert a pipeline to its document, of which `build` makes the same pipeline; report what a blueprint cannot express."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

from flujo_client.blueprint.build import OF_AGENTS
from flujo_client.blueprint.changes import write_changes
from flujo_client.blueprint.finding import refuse
from flujo_client.blueprint.keys import DOCUMENT, VERSION, WhenShape, field_of
from flujo_client.blueprint.kind import EVERY, INIT, KINDS, BodyShape, StepShape, kind_word
from flujo_client.blueprint.read import dump
from flujo_client.blueprint.shapes import AnyOf, FieldType, Key, ListOf, MapOf
from flujo_client.blueprint.value_types import Model, OneOfOr, Reference
from flujo_client.contract.admission import RunLimit
from flujo_client.contract.context import PipelineContext
from flujo_client.contract.processing import PRECHECK_AGENTS
from flujo_client.contract.validation import Finding
from flujo_client.errors import FlujoError
from flujo_client.pipeline.agents import DeclaredAgent
from flujo_client.pipeline.authoring import default_of
from flujo_client.pipeline.compiled_text import Changes, Fits, Templated
from flujo_client.pipeline.conditional import plain_key
from flujo_client.pipeline.hooks import INVARIANT
from flujo_client.pipeline.pipeline import Body, Pipeline
from flujo_client.pipeline.reference import reference_of
from flujo_client.pipeline.step import Step
from flujo_client.plan import kinds
from flujo_client.serial import reference

Data = dict[str, Any]


def to_text(pipeline: Pipeline) -> str:
    """Write a pipeline as a blueprint's text; raises BlueprintError with every reason why a blueprint cannot express it."""
    writing = Writing()
    document = writing.document(pipeline)
    if writing.findings:
        raise refuse(pipeline.name or "of this pipeline", writing.findings)
    return dump(document)


@dataclass
class Writing:
    findings: list[Finding] = field(default_factory=list)
    trail: list[str] = field(default_factory=list)
    """The names of the steps around the current place."""
    agents: dict[str, DeclaredAgent] = field(default_factory=dict)
    imports: Data = field(default_factory=dict)
    """`agents`, `imports`: the declarations of the document, by name."""

    def document(self, pipeline: Pipeline) -> Data:
        steps, model = self.steps(pipeline), pipeline.context_model
        found: Data = {"version": VERSION}
        found |= self.options(pipeline, DOCUMENT.keys, ("version", "context_model", "steps"))
        if model is not PipelineContext:  # without a model, runs have no context
            found["context_model"] = None if model is None else self.named(model, "context model")
        found |= {"imports": self.imports} if self.imports else {}
        found |= {"agents": {name: _agent(name, each) for name, each in self.agents.items()}} if self.agents else {}
        return found | {"steps": steps}

    def cannot(self, what: str) -> None:
        self.findings.append(Finding("Y-WRITE", what, "/".join(self.trail), file="pipeline"))

    def named(self, thing: Any, what: str) -> str:
        """Write where workers find a thing: its own name in its module, else a module's attribute that holds it."""
        if isinstance(thing, str):
            return thing
        with suppress(FlujoError):
            return reference(thing)
        with suppress(FlujoError):
            return reference_of(thing, what=what)
        name = getattr(thing, "__qualname__", None) or type(thing).__name__
        self.cannot(f"its {what} {name} is not an attribute of a module, so a blueprint cannot name it")
        return ""

    def agent(self, agent: Any) -> str:
        """Write an agent's name; a declared one is put into `agents`."""
        if not isinstance(agent, DeclaredAgent):
            return self.named(agent, "agent")
        return f"agents.{_free(self.agents, agent.name, agent)}"

    def agent_of(self, name: str, given: Any) -> Any:
        """Write an agent where there are no keys of a step: by its name, or by its entry with its options for steps."""
        step = given if isinstance(given, Step) else Step(name, given)
        rest = self._every(step, self.working(step) | self.options(step, KINDS[str(kinds.STEP.yaml_name)].keys, ()))
        config = rest.pop("config", {})
        declared = {key: config.pop(field) for key, field in OF_AGENTS.items() if field in config}
        declared |= {"processing": rest.pop("processing")} if "processing" in rest else {}
        is_declared = isinstance(step.agent, DeclaredAgent)
        if type(step) is not Step or isinstance(given, Pipeline) or config or rest != {"name": name}:
            self.cannot(f"'{name}' is more than an agent, and only an agent can be named here")
        elif declared and not is_declared:
            what = "has its own timeout, retries or processing, which only an entry in `agents` can state"
            self.cannot(f"'{name}' {what}")
        elif declared:
            return _agent(name, step.agent) | declared
        else:
            return self.agent(step.agent)
        return ""

    def imported(self, body: Body, name: str) -> str:
        """Write an imported pipeline's name, and put it into `imports`: by its reference if a module holds it, else all of it."""
        pipeline = body if isinstance(body, Pipeline) else Pipeline.from_step(body)
        try:
            given: Any = reference_of(pipeline)
        except FlujoError:
            given = Writing(self.findings, list(self.trail)).document(pipeline)
        return f"imports.{_free(self.imports, pipeline.name or name, given)}"

    def body(self, body: Body) -> Any:
        if isinstance(body, Step):
            return self.step(body)
        for name in ("context_model", "resources", "hooks", "static_invariants", "run_limits"):
            if getattr(body, name) not in (None, (), []):
                self.cannot(f"a pipeline in it has its own {name}; nest it with as_step, which becomes an import")
        return self.steps(body)

    def steps(self, pipeline: Pipeline) -> list[Data]:
        """Write steps; the one that makes the changes before a loop or a map becomes a part of that."""
        written: list[Data] = []
        init: Step | None = None
        for step in pipeline.steps:
            if isinstance(step.agent, Changes) and step.name.endswith(f".{INIT}"):
                init = step
                continue
            data = self.step(step)
            table = KINDS[kind_word(data)].init_table
            if init is not None and init.name == f"{step.name}.{INIT}" and table is not None:
                data[table][INIT] = write_changes(init.agent)
                init = None
            written.append(data)
        if init is not None:
            self.cannot(f"'{init.name}' changes the context but does not precede a loop or map of its name")
        return written

    def step(self, step: Step) -> Data:
        self.trail.append(step.name)
        try:
            kind = next((each for each in KINDS.values() if each.step is type(step)), None)
            if kind is None:
                self.cannot(f"a {type(step).__name__} cannot be written in a blueprint")
                return {}
            named = {} if kind.spec is kinds.STEP or kind.is_import else {"kind": kind.word}
            own = kind.write(self, step)
            own |= self.options(step, kind.own_keys, own)
            own = {name: own[name] for name in kind.own_keys if name in own}
            table = own if kind.own_table is None else {kind.own_table: own}
            return self._every(step, named | table | (self.working(step) if kind.spec.performs else {}))
        finally:
            self.trail.pop()

    def _every(self, step: Step, own: Data) -> Data:
        data = {"name": step.name, **own}
        config = step.config.model_dump(mode="json", exclude_defaults=True)
        if config:
            data["config"] = {**data.get("config", {}), **config}
        return data | self.options(step, EVERY, data)

    def working(self, step: Step) -> Data:
        """Write the keys of a step with an agent."""
        before, judges = list(step.processors.prompt_processors), list(step.validators)
        taken = before.pop(0).schema if before and isinstance(before[0], Fits) else None
        given = judges.pop().schema if judges and isinstance(judges[-1], Fits) else None
        found = {
            "input": step.input,
            "input_schema": None if taken is None else dict(taken),
            "plugins": [self._plugin(each) for each in step.plugins],
            "static_invariants": [self.named(each, INVARIANT) for each in step.static_invariants],
            "prompt_processors": [self.named(each, "processor") for each in before],
            "output_processors": [self.named(each, "processor") for each in step.processors.output_processors],
            "processing": None if step.processing is None else self._processing(step.processing),
            "queue": step.queue,
            "limit": None if step.limit is None else step.limit.model_dump(exclude_defaults=True),
            "validators": [self.named(each, "validator") for each in judges],
            "output_schema": None if given is None else dict(given),
        }
        return {key: value for key, value in found.items() if value not in (None, [])}

    def _plugin(self, given: Any) -> Any:
        plugin, priority = given if isinstance(given, tuple) else (given, 0)
        named = self.named(plugin, "plugin")
        return {"plugin": named, "priority": priority} if priority else named

    def _processing(self, block: Mapping[str, Any]) -> Data:
        precheck = block.get("reasoning_precheck")
        if not precheck:
            return dict(block)
        agents = {key: self.agent(precheck[key]) for key in PRECHECK_AGENTS if precheck.get(key) is not None}
        return {**block, "reasoning_precheck": {**precheck, **agents}}

    def options(self, thing: Step | Pipeline, keys: Mapping[str, Key], own: Collection[str]) -> Data:
        """Write the fields that differ from their defaults, each by its key's shape, except the keys in `own`, which are written already."""
        defaults, found = {each.name: default_of(each) for each in fields(thing)}, Data()
        for name in [name for name in keys if name not in own]:
            option = field_of(name, keys, type(thing))
            value = getattr(thing, option) if option else None
            if option and value != defaults[option] and not isinstance(value, Templated):
                found[name] = self.value(keys[name].shape, value)
        return found

    def value(self, shape: FieldType, value: Any) -> Any:
        """Write what `Building.value` builds; most is plain data."""
        write = next((_OF[each] for each in type(shape).__mro__ if each in _OF), None)
        return _plain(value) if write is None else write(self, shape, value)


def _plain(value: Any) -> Any:
    """Convert a value to YAML's own: words to texts, every sequence to a list."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, RunLimit):
        return asdict(value)
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    """Return the items of a mapping; those of a list by their indices, as names."""
    if isinstance(value, Mapping):
        return ((plain_key(key), each) for key, each in value.items())
    return ((str(index), each) for index, each in enumerate(value))


_OF: Final[Mapping[type, Callable[[Writing, Any, Any], Any]]] = {
    AnyOf: lambda write, shape, value: write.value(
        next((each for each in shape.shapes if each.fits(value)), shape.shapes[-1]), value
    ),
    BodyShape: lambda write, _, value: write.body(value),
    ListOf: lambda write, shape, value: [write.value(shape.each, each) for each in _plain(value)],
    MapOf: lambda write, shape, value: {name: write.value(shape.each, each) for name, each in _items(value)},
    Model: lambda _, __, value: value.model_dump(exclude_defaults=True),
    OneOfOr: lambda write, shape, value: write.value(shape.other, _plain(value)),
    Reference: lambda write, shape, value: write.named(value, shape.what),
    StepShape: lambda write, _, value: write.step(value),
    WhenShape: lambda write, _, value: write.named(value, INVARIANT),
}
"""How what values of shapes stand for is written."""


def _free(known: dict[str, Any], name: str, thing: Any) -> str:
    """Store a thing under its name, or under that with a number appended when another has it."""
    number, free = 1, name
    while free in known and known[free] != thing:
        number += 1
        free = f"{name}_{number}"
    known[free] = thing
    return free


def _agent(name: str, agent: DeclaredAgent) -> Data:
    found = {each.name: getattr(agent, each.name) for each in fields(agent)}
    return {key: _plain(value) for key, value in found.items() if value and not (key == "name" and value == name)}
