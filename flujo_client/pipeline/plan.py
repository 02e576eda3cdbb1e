"""A pipeline as data: what decides needs to know, and the fingerprint that client and workers compare.

The plan holds no live object. Workers find those by resolving the pipeline's reference and compiling it again; if that gives
another fingerprint, the code is not the code the run was started with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flujo_client.pipeline.identity import digest, identify
from flujo_client.pipeline.step import Backoff
from flujo_client.serial import safe_serialize

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flujo_client.pipeline.compose import Pipeline
    from flujo_client.pipeline.step import Step

PLAN_VERSION = 1


@dataclass(frozen=True, slots=True)
class Node:
    """A place in the plan. `traits` is what the fingerprint knows of it beyond what decides."""

    name: str
    kind: str
    max_attempts: int
    backoff: Backoff | None
    queue: str | None
    traits: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """A pipeline as data, with the SHA-256 of it."""

    name: str
    version: str
    nodes: tuple[Node, ...]
    context_model: str | None
    fingerprint: str

    def to_tree(self) -> dict[str, Any]:
        """Give the plan as plain data, to be stored with its runs."""
        nodes = [
            {
                "name": node.name,
                "kind": node.kind,
                "max_attempts": node.max_attempts,
                "backoff": None if node.backoff is None else node.backoff.model_dump(),
                "queue": node.queue,
                "traits": node.traits,
            }
            for node in self.nodes
        ]
        return {
            "v": PLAN_VERSION,
            "name": self.name,
            "version": self.version,
            "context_model": self.context_model,
            "nodes": nodes,
        }

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> Plan:
        """Read a stored plan."""
        nodes = tuple(
            Node(
                name=node["name"],
                kind=node["kind"],
                max_attempts=node["max_attempts"],
                backoff=None if node["backoff"] is None else Backoff(**node["backoff"]),
                queue=node["queue"],
                traits=node["traits"],
            )
            for node in tree["nodes"]
        )
        return cls(tree["name"], tree["version"], nodes, tree["context_model"], digest(tree))


def compile_plan(pipeline: Pipeline, *, default_name: str = "pipeline") -> Plan:
    """Compile a pipeline. It should have passed `check` before.

    Args:
        pipeline: what to compile.
        default_name: the name of a pipeline that has none of its own.
    """
    model = pipeline.context_model
    plan = Plan(
        name=pipeline.name or default_name,
        version=pipeline.version,
        nodes=tuple(_node(step) for step in pipeline.steps),
        context_model=None if model is None else f"{model.__module__}:{model.__qualname__}",
        fingerprint="",
    )
    return Plan.from_tree(plan.to_tree())


def _node(step: Step) -> Node:
    config = step.config
    return Node(
        name=step.name,
        kind="step",
        max_attempts=config.max_retries + 1,
        backoff=config.backoff,
        queue=step.queue,
        traits={
            "agent": identify(step.agent),
            "config": config.model_dump(exclude={"backoff", "max_retries"}, exclude_none=True),
            "plugins": [_plugin(each) for each in step.plugins],
            "validators": [identify(each) for each in step.validators],
            "updates_context": step.updates_context,
            "sink_to": step.sink_to,
            "meta": safe_serialize(step.meta),
        },
    )


def _plugin(given: Any) -> list[Any]:
    """A plugin and its priority, for the order they are asked in may change the output."""
    plugin, priority = given if isinstance(given, tuple) else (given, 0)
    return [identify(plugin), priority]
