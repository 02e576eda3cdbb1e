"""Convert a pipeline to its document, of which `build` makes the same pipeline; report what a blueprint cannot express."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any

from flujo_client.blueprint.build import OF_AGENTS
from flujo_client.blueprint.changes import write_changes
from flujo_client.blueprint.finding import refuse
from flujo_client.blueprint.keys import VERSION
from flujo_client.blueprint.kind import INIT, KINDS, kind_word
from flujo_client.blueprint.read import dump
from flujo_client.contract.context import PipelineContext
from flujo_client.contract.processing import PRECHECK_AGENTS
from flujo_client.contract.validation import Finding
from flujo_client.errors import FlujoError
from flujo_client.pipeline.agents import DeclaredAgent
from flujo_client.pipeline.compiled_text import Changes, Fits
from flujo_client.pipeline.hooks import HOOK, INVARIANT
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
        steps, model, migrations = self.steps(pipeline), pipeline.context_model, pipeline.context_migrations.items()
        given: Data = {
            "version": VERSION,
            "name": pipeline.name,
            "pipeline_version": None if pipeline.version == "latest" else pipeline.version,
            "on_change": pipeline.on_change,
            "on_body_change": None if pipeline.on_body_change == "warn" else pipeline.on_body_change,
            "stream": pipeline.stream or None,
            "context_migrations": {key: self.named(function, "migration") for key, function in migrations},
            "context_model": None if model in (None, PipelineContext) else self.named(model, "context model"),
            "resources": None if pipeline.resources is None else self.named(pipeline.resources, "resources object"),
            "hooks": [self.named(hook, HOOK) for hook in pipeline.hooks],
            "static_invariants": [self.named(each, INVARIANT) for each in pipeline.static_invariants],
            "run_limits": [asdict(each) for each in pipeline.run_limits],
            "imports": self.imports,
            "agents": {name: _agent(name, each) for name, each in self.agents.items()},
            "steps": steps,
        }
        kept = ("steps", "context_model") if model is None else ("steps",)  # a null model: runs have no context
        return {key: each for key, each in given.items() if each not in (None, [], {}) or key in kept}

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
        rest = self._every(step, self.working(step) | self.options(step, "updates_context", "sink_to"))
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

    def bodies(self, bodies: Mapping[Any, Body]) -> Data:
        return {name: self.body(body) for name, body in bodies.items()}

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
            return self._every(step, named | kind.write(self, step))
        finally:
            self.trail.pop()

    def _every(self, step: Step, own: Data) -> Data:
        data = {"name": step.name, **own}
        config = step.config.model_dump(mode="json", exclude_defaults=True)
        if config:
            data["config"] = {**data.get("config", {}), **config}
        if step.meta:
            data["meta"] = dict(step.meta)
        if step.usage_limits is not None:
            data["usage_limits"] = step.usage_limits.model_dump(exclude_none=True)
        if step.fallback_step is not None:
            data["fallback"] = self.step(step.fallback_step)
        return data

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

    def options(self, step: Step, *names: str, **functions: str) -> Data:
        """Write the fields that are not as they are by default: plain data as it is, others, given with what each is, by their names."""
        defaults = {each.name: None if each.default is MISSING else each.default for each in fields(step)}
        found = {name: getattr(step, name) for name in (*names, *functions)}
        given = {name: _plain(each) for name, each in found.items() if each != defaults[name]}
        for name, what in functions.items():
            if not isinstance(given.get(name, {}), Mapping):
                given[name] = self.named(given[name], what)
        return given


def _plain(value: Any) -> Any:
    """Convert a value to YAML's own: words to texts, every sequence to a list."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(value)
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


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
