"""A pipeline as data, without live objects, and its fingerprint, which tells whether code is that with which a run was started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, Field

from flujo_client.plan.kinds import KINDS, KindSpec
from flujo_client.serial import digest

PLAN_VERSION = 1

OnChange = Literal["carry_on", "pin", "park"]
"""The policies for a run whose code has changed: it continues under the new code if that is possible, waits for a worker that still has the old
code, or waits until it is moved or cancelled (ADR 37)."""
ON_CHANGE: Final = get_args(OnChange)


class Backoff(BaseModel):
    """The seconds before a retry: `base_s * factor ** (number - 1)`, at most `cap_s`, plus or minus the share `jitter`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    base_s: float = Field(default=1.0, ge=0)
    factor: float = Field(default=2.0, ge=1)
    cap_s: float = Field(default=60.0, ge=0)
    jitter: float = Field(default=0.1, ge=0, le=1)


class Nodes(tuple["Node", ...]):  # noqa: SLOT001 - the places are cached in its __dict__
    """Nodes that run in this order. Finding one by its name takes as long among ten thousand as among ten."""

    def named(self, name: str) -> Node:
        """Find a node by its name; raises KeyError if there is none."""
        return self[self.places[name]]

    def walk(self) -> Iterator[Node]:
        """Yield every node, a container before what it holds."""
        for node in self:
            yield node
            for body in node.bodies.values():
                yield from body.walk()

    @cached_property
    def places(self) -> dict[str, int]:
        """Return each node's place by its name."""
        return {node.name: place for place, node in enumerate(self)}


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    kind: str
    max_attempts: int = 1
    backoff: Backoff | None = None
    queue: str | None = None
    traits: dict[str, Any] = field(default_factory=dict)
    """Facts that are part of the fingerprint and do not affect decisions."""
    rules: dict[str, Any] = field(default_factory=dict)
    """Facts about a container that decisions need, as plain data."""
    bodies: dict[str, Nodes] = field(default_factory=dict)
    """The bodies that a container runs, by key: the name of a branch, path or state, or `body`."""
    path: str = ""
    """The node's unique place in the plan: names of nodes and keys of their bodies, separated by `/`."""

    @property
    def spec(self) -> KindSpec:
        return KINDS[self.kind]

    @property
    def is_fan_out(self) -> bool:
        """Return whether its children are branches, which run side by side and meet in a join."""
        fans_out = self.spec.fans_out
        return bool(self.rules.get(fans_out)) if isinstance(fans_out, str) else fans_out

    def to_tree(self) -> dict[str, Any]:
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
        if self.bodies:  # pairs, because jsonb has no order
            tree["bodies"] = [[key, [node.to_tree() for node in nodes]] for key, nodes in self.bodies.items()]
        return tree

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any], above: str = "") -> Node:
        """Read a node; `above` is the path of the body it is in, with a `/` at its end."""
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


_OPTIONAL: Final = ("resources", "hooks", "blueprint", "on_change", "invariants", "run_limits")
"""The parts that most plans do not have, in the order of the fields."""


class PlanLocation(NamedTuple):
    """The place in the plan that an address denotes."""

    container: Node | None
    """The container at this place or above it; None for the root."""
    nodes: Nodes | None
    """The nodes that run there, in order; None for the scope of a container itself."""
    above: str | None
    """The address of the parent scope; None for the root."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A pipeline as data, with the SHA-256 of it."""

    name: str
    version: str
    nodes: Nodes
    context_model: str | None
    fingerprint: str
    resources: dict[str, Any] | None = None
    hooks: dict[str, Any] | None = None
    """The hooks of each pipeline in the plan that has some, by the path of its body; `""` for the outermost."""
    blueprint: str | None = None
    """The text of the blueprint; None for a pipeline in a module."""
    on_change: OnChange | None = None
    """The policy for its runs when its code changes; None: the project's policy."""
    invariants: dict[str, Any] | None = None
    """The static invariants of each pipeline in the plan that has some, by path as in `hooks`."""
    run_limits: list[dict[str, Any]] | None = None
    """The limits that all its runs pass, as plain data."""

    def locate(self, address: str) -> PlanLocation:
        """Return the place that a scope's address denotes; raises KeyError if it is not in this plan."""
        location, here, container_address = PlanLocation(None, self.nodes, None), "", ""
        for part in address.split("/") if address else ():
            if location.nodes is None and location.container is not None:
                location, here = (
                    PlanLocation(location.container, location.container.bodies[part], container_address),
                    f"{here}/{part}",
                )
                continue
            name, child, _ = part.partition("#")
            container = (location.nodes or Nodes()).named(name)
            above, container_address, here = here, _under(here, name), _under(here, part)
            body = container.bodies.get("body") if child and container.spec.iterates else None
            location = PlanLocation(container, body, above if body is None else container_address)
        return location

    def node(self, address: str, step: str) -> Node:
        """Return the node of a step in a scope; raises KeyError if it is not in this plan."""
        return (self.locate(address).nodes or Nodes()).named(step)

    def to_tree(self) -> dict[str, Any]:
        """Return the plan as plain data, to be stored with its runs."""
        return {
            "v": PLAN_VERSION,
            "name": self.name,
            "version": self.version,
            "context_model": self.context_model,
            "nodes": [node.to_tree() for node in self.nodes],
            **{name: given for name in _OPTIONAL if (given := getattr(self, name)) is not None},
        }

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> Plan:
        nodes = Nodes(Node.from_tree(node) for node in tree["nodes"])
        named = tree["name"], tree["version"], nodes, tree["context_model"]
        return cls(*named, digest(tree), *map(tree.get, _OPTIONAL))


def _under(address: str, part: str) -> str:
    return f"{address}/{part}" if address else part
