"""A pipeline as data: what decides needs to know, and the fingerprint that client and workers compare.

The plan holds no live object. Workers find those by resolving the pipeline's reference and compiling it again; if that gives
another fingerprint, the code is not the code the run was started with.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from flujo_client.contract.processing import PRECHECK_AGENTS
from flujo_client.contract.sizes import MAX_PLAN_BYTES
from flujo_client.errors import PipelineError
from flujo_client.pipeline.background import KIND as BACKGROUND
from flujo_client.pipeline.fallback import FALLBACK
from flujo_client.pipeline.fallback import KIND as FALLBACK_KIND
from flujo_client.pipeline.identity import digest, identify, whole
from flujo_client.pipeline.pipeline import Pipeline, model_name, steps_of
from flujo_client.pipeline.step import Backoff
from flujo_client.pipeline.walk import walk
from flujo_client.serial import stored

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from flujo_client.pipeline.step import Step

PLAN_VERSION = 1


FAN_OUTS = frozenset({"parallel", "router"})
"""Kinds whose children run side by side. A map is one too when its rules say `parallel`."""

PERFORMED = frozenset({"step", "router"})
"""Kinds that begin with attempts at an agent of their own."""

ITERATED = frozenset({"loop", "map"})
"""Kinds whose children are numbered and all run the one body."""


class Nodes(tuple["Node", ...]):  # noqa: SLOT001 - the places are cached in its __dict__
    """Nodes that run in this order. Finding one by its name takes as long among ten thousand as among ten."""

    def place_of(self, name: str) -> int:
        """Find a node's place by its name; raises KeyError if there is none."""
        return self._places[name]

    def named(self, name: str) -> Node:
        """Find a node by its name; raises KeyError if there is none."""
        return self[self._places[name]]

    @cached_property
    def _places(self) -> dict[str, int]:
        return {node.name: place for place, node in enumerate(self)}


@dataclass(frozen=True, slots=True)
class Node:
    """A place in the plan.

    Attributes:
        path: where the node stands in the plan, unique: names of nodes and keys of their bodies, `/` between them.
        rules: what decides needs to know about a container, as plain data.
        bodies: what a container runs, by key: a branch's, path's or state's name, or `body`.
        traits: what the fingerprint knows of it beyond what decides.
    """

    name: str
    kind: str
    max_attempts: int = 1
    backoff: Backoff | None = None
    queue: str | None = None
    traits: dict[str, Any] = field(default_factory=dict)
    rules: dict[str, Any] = field(default_factory=dict)
    bodies: dict[str, Nodes] = field(default_factory=dict)
    path: str = ""

    @property
    def is_fan_out(self) -> bool:
        """Tell whether its children are branches, which run side by side and meet in a join."""
        return self.kind in FAN_OUTS or (self.kind == "map" and bool(self.rules.get("parallel")))

    def to_tree(self) -> dict[str, Any]:
        """Give the node as plain data."""
        tree = {
            "name": self.name,
            "kind": self.kind,
            "max_attempts": self.max_attempts,
            "backoff": None if self.backoff is None else self.backoff.model_dump(),
            "queue": self.queue,
            "traits": self.traits,
        }
        if self.rules:
            tree["rules"] = self.rules
        if self.bodies:  # pairs, for jsonb keeps no order
            tree["bodies"] = [[key, [node.to_tree() for node in nodes]] for key, nodes in self.bodies.items()]
        return tree

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any], above: str = "") -> Node:
        """Read a node; `above` is the path of the body it stands in, with a `/` at its end."""
        path = above + tree["name"]
        return cls(
            name=tree["name"],
            kind=tree["kind"],
            max_attempts=tree["max_attempts"],
            backoff=None if tree["backoff"] is None else Backoff(**tree["backoff"]),
            queue=tree["queue"],
            traits=tree["traits"],
            rules=tree.get("rules", {}),
            bodies={
                key: Nodes(cls.from_tree(node, f"{path}/{key}/") for node in nodes)
                for key, nodes in tree.get("bodies", ())
            },
            path=path,
        )


class Spot(NamedTuple):
    """What an address stands for in the plan.

    Attributes:
        container: the container it is, or is a child of; None for the root.
        nodes: what runs there, in order; None for the scope of a container itself.
        above: the address of the scope above it; None for the root.
    """

    container: Node | None
    nodes: Nodes | None
    above: str | None


@dataclass(frozen=True, slots=True)
class Plan:
    """A pipeline as data, with the SHA-256 of it.

    Attributes:
        hooks: those of each pipeline in it that has some, by the path of the body it is, `""` for the outermost.
        blueprint: the text it was built from; None for a pipeline that a module holds.
    """

    name: str
    version: str
    nodes: Nodes
    context_model: str | None
    fingerprint: str
    resources: dict[str, Any] | None = None
    hooks: dict[str, Any] | None = None
    blueprint: str | None = None

    def locate(self, address: str) -> Spot:
        """Find what a scope's address stands for; raises KeyError if it is none of this plan's."""
        spot, here, box = Spot(None, self.nodes, None), "", ""
        for part in address.split("/") if address else ():
            if spot.nodes is None and spot.container is not None:
                spot, here = Spot(spot.container, spot.container.bodies[part], box), f"{here}/{part}"
                continue
            name, child, _ = part.partition("#")
            container = (spot.nodes or Nodes()).named(name)
            above, box, here = here, _under(here, name), _under(here, part)
            body = container.bodies.get("body") if child and container.kind in ITERATED else None
            spot = Spot(container, body, above if body is None else box)
        return spot

    def to_tree(self) -> dict[str, Any]:
        """Give the plan as plain data, to be stored with its runs."""
        return {
            "v": PLAN_VERSION,
            "name": self.name,
            "version": self.version,
            "context_model": self.context_model,
            "nodes": [node.to_tree() for node in self.nodes],
            **({} if self.resources is None else {"resources": self.resources}),
            **({} if self.hooks is None else {"hooks": self.hooks}),
            **({} if self.blueprint is None else {"blueprint": self.blueprint}),
        }

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> Plan:
        """Read a stored plan."""
        nodes = Nodes(Node.from_tree(node) for node in tree["nodes"])
        named = tree["name"], tree["version"], nodes, tree["context_model"]
        return cls(*named, digest(tree), tree.get("resources"), tree.get("hooks"), tree.get("blueprint"))


def _under(address: str, part: str) -> str:
    return f"{address}/{part}" if address else part


def compile_plan(pipeline: Pipeline, *, default_name: str = "pipeline") -> Plan:
    """Compile a pipeline. It should have passed `check` before.

    Args:
        pipeline: what to compile.
        default_name: the name of a pipeline that has none of its own.

    Raises:
        PipelineError: it is too deep or too large, or contains itself.
        SerializationError: it holds what Postgres does not give back as it is; the place in the plan is named.
    """
    hooks = _hooks(pipeline)  # walks, and so refuses what has no end before it is built
    plan = Plan(
        name=pipeline.name or default_name,
        version=pipeline.version,
        nodes=Nodes(map(_node, steps_of(pipeline))),
        context_model=model_name(pipeline.context_model),
        fingerprint="",
        resources=None if pipeline.resources is None else identify(pipeline.resources),
        hooks=hooks or None,
        blueprint=pipeline.blueprint,
    )
    tree = plan.to_tree()
    size = len(stored(tree, path="plan").encode())
    if size > MAX_PLAN_BYTES:
        raise PipelineError(
            f"the pipeline's plan has {size:,} bytes of JSON; at most {MAX_PLAN_BYTES:,} are kept",
            suggestion="make a part of it a pipeline of its own, or keep large schemas and texts out of its steps",
            code="PIPELINE_TOO_LARGE",
        )
    return Plan.from_tree(tree)


def _hooks(pipeline: Pipeline) -> dict[str, Any]:
    bodies: dict[str, Any] = {"": pipeline}
    for path, step in walk(pipeline):
        bodies |= {f"{path}/{key}": body for key, body in step.bodies().items()}
    named = {path: body.hooks for path, body in bodies.items() if isinstance(body, Pipeline)}
    return {path: [identify(each) for each in hooks] for path, hooks in named.items() if hooks}


def _node(step: Step, *, once: bool = False) -> Node:
    """Make a step's node; `once`: it is a fallback, whose agent is asked once (C-01)."""
    config = step.config
    passes = step.kind in (FALLBACK_KIND, BACKGROUND)
    return Node(
        name=step.name,
        kind=step.kind,
        max_attempts=1 if once else config.max_retries + 1,
        backoff=config.backoff,
        queue=step.queue,
        traits=_traits(step),
        rules=step.rules(),
        bodies={
            key: Nodes(_node(each, once=passes and (once or key == FALLBACK)) for each in steps_of(body))
            for key, body in step.bodies().items()
        },
    )


_NO_TRAITS = {"backoff", "max_retries", "preserve_fallback_diagnostics", "execution_mode"}
"""Of a `StepConfig`: what stands in the node itself, in a fallback's rules, or as a container of its own."""


def _traits(step: Step) -> dict[str, Any]:
    traits = {
        "agent": identify(step.agent),
        "config": step.config.model_dump(exclude=_NO_TRAITS, exclude_none=True),
        "plugins": [_plugin(each) for each in step.plugins],
        "validators": [identify(each) for each in step.validators],
        "updates_context": step.updates_context,
        "sink_to": step.sink_to,
        "meta": whole(step.meta),
        **_shaping(step),
        **_resources(step),
        **step.traits(),
    }
    functions = {name: identify(function) for name, function in _functions(step)}
    return traits | {"functions": functions} if functions else traits


def _shaping(step: Step) -> dict[str, Any]:
    """What its `processing`, processors, input, limits and `validate_fields` change; nothing for a step that has none, so that its fingerprint stays."""
    traits: dict[str, Any] = {}
    if step.processing is not None:
        block = dict(step.processing)
        precheck = dict(block.get("reasoning_precheck") or {})
        agents = {key: identify(precheck[key]) for key in PRECHECK_AGENTS if precheck.get(key) is not None}
        traits["processing"] = whole({**block, **({"reasoning_precheck": precheck | agents} if precheck else {})})
    for key in ("prompt_processors", "output_processors"):
        if given := getattr(step.processors, key):
            traits[key] = [identify(each) for each in given]
    if step.usage_limits is not None:
        traits["usage_limits"] = step.usage_limits.model_dump()
    if step.validate_fields:
        traits["validate_fields"] = True
    if step.input is not None:
        traits["input"] = step.input
    return traits


def _resources(step: Step) -> dict[str, Any]:
    """The resources that pipelines inside it name; nothing where none does, so that its fingerprint stays."""
    named = {key: getattr(body, "resources", None) for key, body in step.bodies().items()}
    found = {key: identify(each) for key, each in named.items() if each is not None}
    return {"resources": found} if found else {}


def _functions(step: Step) -> Iterator[tuple[str, Any]]:
    for role, given in step.functions().items():
        if isinstance(given, dict):
            yield from ((f"{role} {index}", each) for index, each in given.items())
        else:
            yield role, given


def _plugin(given: Any) -> list[Any]:
    """A plugin and its priority, for the order they are asked in may change the output."""
    plugin, priority = given if isinstance(given, tuple) else (given, 0)
    return [identify(plugin), priority]
