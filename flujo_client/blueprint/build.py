"""Build a pipeline from a self-contained document whose shapes `load.py` has checked; `kinds` builds the steps of each kind.

It must not look at files. The client and every worker build alike.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Final

from flujo_client.blueprint.changes import build_changes
from flujo_client.blueprint.keys import TIMEOUT, field_of
from flujo_client.blueprint.kind import EVERY, INIT, KINDS, BodyShape, Data, StepShape, kind_word, present
from flujo_client.blueprint.shapes import AnyOf, FieldType, Key, ListOf, MapOf
from flujo_client.blueprint.value_types import Model, OneOfOr, Reference
from flujo_client.contract.admission import RunLimit
from flujo_client.contract.context import PipelineContext
from flujo_client.contract.limits import Limit
from flujo_client.contract.processing import PRECHECK_AGENTS
from flujo_client.pipeline.agents import DeclaredAgent
from flujo_client.pipeline.compiled_text import Fits
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.reference import load, load_pipeline
from flujo_client.pipeline.step import AgentProcessors, Step, StepConfig

OF_AGENTS: Final = MappingProxyType({"timeout": "timeout_s", "max_retries": "max_retries"})
"""An agent's options for its steps, with the fields of their config."""


def build(document: Data, *, allowed: Sequence[str]) -> Pipeline:
    """Build the pipeline of a document that is self-contained and sound; its references may be under the allowed import prefixes."""
    return Building(document, tuple(allowed)).pipeline


@dataclass(frozen=True)
class Building:
    """The building of one document; each imported one has its own."""

    document: Data
    allowed: tuple[str, ...]
    imports: dict[str, Pipeline] = field(default_factory=dict)

    @property
    def pipeline(self) -> Pipeline:
        given = self.document
        named, migrations = given.get("context_model", PipelineContext), given.get("context_migrations", {})
        return Pipeline(
            self.steps(given["steps"]),
            version=given.get("pipeline_version", "latest"),
            context_model=self.load(named, "context model") if isinstance(named, str) else named,
            hooks=tuple(given.get("hooks", ())),
            static_invariants=tuple(given.get("static_invariants", ())),
            run_limits=tuple(RunLimit(**each) for each in given.get("run_limits", ())),
            context_migrations={key: self.load(function, "migration") for key, function in migrations.items()},
            **present(given, "name", "resources", "on_change", "on_body_change", "stream"),
        )

    def load(self, reference: str, what: str) -> Any:
        return load(reference, allowed=self.allowed, what=what)

    def steps(self, body: Any) -> list[Step]:
        return [step for each in ([body] if isinstance(body, Mapping) else body) for step in self.with_init(each)]

    def with_init(self, data: Data) -> list[Step]:
        """Build a step, after the one that makes the changes of the context that a loop or a map begins with."""
        table = KINDS[kind_word(data)].init_table
        init = None if table is None else data[table].get(INIT)
        before = [] if init is None else [Step(f"{self.name(data)}.{INIT}", build_changes(init))]
        return [*before, self.step(data)]

    def name(self, data: Data) -> str:
        """Return a step's name; a cache's may be that of the step in it."""
        return str(data.get("name", data.get("step", "")))

    def body(self, body: Any) -> Pipeline | Step:
        steps = self.steps(body)
        return steps[0] if isinstance(body, Mapping) and len(steps) == 1 else Pipeline(steps)

    def step(self, data: Data) -> Step:
        kind = KINDS[kind_word(data)]
        own = ({} if kind.spec.performs else self.contained(data)) | kind.build(self, data)
        given = data if kind.own_table is None else data[kind.own_table]
        return kind.step(**own, **self.options(kind.step, kind.own_keys, given, own))

    def options(self, step: type[Step], keys: Mapping[str, Key], data: Data, own: Collection[str]) -> dict[str, Any]:
        """Build the fields of the given keys, each by its shape, except those in `own`, which are built already."""
        found = ((field_of(name, keys, step), name) for name in data)
        return {field: self.value(keys[name].shape, data[name]) for field, name in found if field and field not in own}

    def value(self, shape: FieldType, value: Any) -> Any:
        """Build what a value of a shape stands for; most stand for themselves."""
        make = next((_OF[each] for each in type(shape).__mro__ if each in _OF), None)
        return value if make is None else make(self, shape, value)

    def working_agent(self, name: str, given: Any) -> Step:
        """Build the step of an agent that is named without a step: with what its entry sets for its steps."""
        return Step(agent=self.agent(given, name), **self.working({"name": name}, self.entry(given)))

    def every(self, data: Data) -> dict[str, Any]:
        """Return the arguments that every step takes."""
        return {"name": self.name(data), **self.options(Step, EVERY, data, ("name",))}

    def contained(self, data: Data) -> dict[str, Any]:
        """Return the arguments that every container takes."""
        mode = {key: value for key, value in data.get("config", {}).items() if key == "execution_mode"}
        return self.every(data) | {"config": StepConfig(**mode)}

    def working(self, data: Data, agent: Data) -> dict[str, Any]:
        """Return the arguments of a step with an agent; `agent` is its entry in the document, if it has one."""
        defaults = {name: agent[key] for key, name in OF_AGENTS.items() if key in agent}
        config = {TIMEOUT.get(key, key): value for key, value in data.get("config", {}).items()}
        before = [self.load(each, "processor") for each in data.get("prompt_processors", ())]
        after = [self.load(each, "processor") for each in data.get("output_processors", ())]
        schema = data.get("input_schema")
        return self.every(data) | {
            "config": StepConfig(**{**defaults, **config}),
            "plugins": [self.plugin(each) for each in data.get("plugins", ())],
            "validators": [self.load(each, "validator") for each in data.get("validators", ())],
            "static_invariants": tuple(data.get("static_invariants", ())),
            "processing": self.processing(agent.get("processing"), data.get("processing")),
            "processors": AgentProcessors(before if schema is None else [Fits(schema), *before], after),
            "queue": data.get("queue"),
            "limit": None if "limit" not in data else Limit(**data["limit"]),
            "input": data.get("input"),
        }

    def plugin(self, given: Any) -> Any:
        if isinstance(given, str):
            return self.load(given, "plugin")
        return self.load(given["plugin"], "plugin"), given.get("priority", 0)

    def processing(self, under: Data | None, over: Data | None) -> dict[str, Any] | None:
        """Merge a step's block over its agent's, with the agents that its precheck names."""
        if under is None and over is None:
            return None
        block = _merged(under or {}, over or {})
        precheck = block.get("reasoning_precheck")
        if precheck:
            found = {key: self.agent(precheck[key], key) for key in PRECHECK_AGENTS if precheck.get(key) is not None}
            block["reasoning_precheck"] = {**precheck, **found}
        return block

    def entry(self, given: Any) -> Data:
        """Return an agent's entry in this document; an empty one for an agent of a module."""
        if isinstance(given, str):
            table, _, name = given.partition(".")
            return self.document["agents"][name] if table == "agents" and ":" not in given else {}
        return self.entry(given["id"]) if "id" in given else given

    def agent(self, given: Any, name: str) -> Any:
        """Return the agent that a text, an `id` or an entry names; `name` is that of an entry without one."""
        entry = self.entry(given)
        if not entry:
            return given if isinstance(given, str) else given["id"]
        named = given if isinstance(given, str) else given.get("id")
        own = {"name": named.partition(".")[2] if named else name}
        own |= present(entry, *(each.name for each in fields(DeclaredAgent)))
        return DeclaredAgent(**own | {"tools": tuple(entry.get("tools", ()))})

    def imported(self, name: str) -> Pipeline:
        """Return an imported pipeline, which is built once."""
        if name not in self.imports:
            given = self.document["imports"][name]
            make: Callable[..., Pipeline] = build if isinstance(given, Mapping) else load_pipeline
            self.imports[name] = make(given, allowed=self.allowed)
        return self.imports[name]


_OF: Final[Mapping[type, Callable[[Building, Any, Any], Any]]] = {
    AnyOf: lambda build, shape, value: build.value(next(each for each in shape.shapes if each.fits(value)), value),
    BodyShape: lambda build, _, value: build.body(value),
    ListOf: lambda build, shape, value: [build.value(shape.each, each) for each in value],
    MapOf: lambda build, shape, value: {name: build.value(shape.each, each) for name, each in value.items()},
    Model: lambda _, shape, value: shape.model(**shape.read(value)),
    OneOfOr: lambda build, shape, value: build.value(shape.other, value) if ":" in value else value,
    Reference: lambda build, shape, value: build.load(value, shape.what),
    StepShape: lambda build, _, value: build.step(value),
}
"""Builders of the values of shapes; `document` does the reverse."""


def _merged(under: Data, over: Data) -> dict[str, Any]:
    both = (key for key in under.keys() & over.keys() if all(isinstance(each[key], Mapping) for each in (under, over)))
    return {**under, **over, **{key: _merged(under[key], over[key]) for key in both}}
