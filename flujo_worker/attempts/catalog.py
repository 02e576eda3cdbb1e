"""The live pipelines of this process, found by reference and held to the fingerprint a run was started with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flujo_client.errors import FlujoError
from flujo_client.pipeline.compose import Pipeline
from flujo_client.pipeline.plan import Plan, compile_plan
from flujo_client.pipeline.reference import RESOURCES, load, load_pipeline
from flujo_client.pipeline.walk import walk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flujo_client.pipeline.step import Step


class Unfit(Exception):
    """This worker cannot carry the run on: its code is missing, forbidden, or not the code the run was started with."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A pipeline with its plan and its steps, by their paths in it."""

    pipeline: Pipeline
    plan: Plan
    steps: dict[str, Step]

    def resources_at(self, path: str) -> Any:
        """What the innermost pipeline around a step names as its resources."""
        named, parts = self.pipeline.resources, path.split("/")
        for end in range(1, len(parts) - 1, 2):
            body = self.steps["/".join(parts[:end])].bodies()[parts[end]]
            if isinstance(body, Pipeline) and body.resources is not None:
                named = body.resources
        return named


class Catalog:
    """Finds pipelines, agents and resources; each is resolved once per process.

    Args:
        allowed: import prefixes they may stand under.
    """

    def __init__(self, allowed: Sequence[str]) -> None:
        self._allowed = tuple(allowed)
        self._entries: dict[str, Entry] = {}
        self._live: dict[str, Any] = {}

    def entry(self, reference: str, fingerprint: str) -> Entry:
        """Find the pipeline of a run.

        Raises:
            Unfit: with the reason that the run is parked for.
        """
        entry = self._entries.get(reference)
        if entry is None:
            entry = self._entries[reference] = self._load(reference)
        if entry.plan.fingerprint != fingerprint:
            raise Unfit(
                f"this worker's code of '{reference}' has fingerprint {entry.plan.fingerprint[:12]}, "
                f"the run was started with {fingerprint[:12]}; a worker with that code will carry it on"
            )
        return entry

    def agent(self, agent: Any) -> Any:
        """Find a step's live agent; a reference is imported."""
        return self._found(agent, "agent")

    def resources(self, named: Any) -> Any:
        """Find live resources; a reference is imported."""
        return self._found(named, RESOURCES)

    def _found(self, thing: Any, what: str) -> Any:
        if not isinstance(thing, str):
            return thing
        if thing not in self._live:
            self._live[thing] = load(thing, allowed=self._allowed, what=what)
        return self._live[thing]

    def _load(self, reference: str) -> Entry:
        try:
            pipeline = load_pipeline(reference, allowed=self._allowed)
        except FlujoError as error:
            raise Unfit(f"this worker cannot load its pipeline: {error.message}") from error
        except Exception as error:
            raise Unfit(f"importing '{reference}' raised {type(error).__name__}: {error}") from error
        plan = compile_plan(pipeline, default_name=reference.rpartition(":")[2])
        return Entry(pipeline, plan, dict(walk(pipeline)))
