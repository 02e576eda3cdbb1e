"""The live pipelines of this process, found by reference and held to the fingerprint a run was started with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flujo_client.blueprint.load import load_stored
from flujo_client.errors import FlujoError
from flujo_client.pipeline.compose import Pipeline
from flujo_client.pipeline.declared import DeclaredAgent
from flujo_client.pipeline.plan import Plan, compile_plan
from flujo_client.pipeline.reference import (
    RESOURCES,
    blueprint_reference,
    having_resources,
    is_blueprint,
    load,
    load_pipeline,
    without_resources,
)
from flujo_client.pipeline.walk import walk
from flujo_worker.agents.declared import make_declared

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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


MOST_KEPT = 1_000
"""Pipelines, and agents and resources, that a process keeps: modules hold few, blueprints may come and go."""


class Catalog:
    """Finds pipelines, agents and resources; each is resolved once per process.

    Args:
        allowed: import prefixes they may stand under.
        plan_of: finds the plan of a fingerprint, which has the text of a blueprint.
    """

    def __init__(self, allowed: Sequence[str], plan_of: Callable[[str], Plan | None]) -> None:
        self._allowed, self._plan_of = tuple(allowed), plan_of
        self._entries: dict[str, Entry] = {}
        self._live: dict[Any, Any] = {}

    def entry(self, reference: str, fingerprint: str) -> Entry:
        """Find the pipeline of a run.

        Raises:
            Unfit: with the reason that the run is parked for.
        """
        entry = self._entries.get(reference)
        if entry is None:
            entry = self._load(reference, fingerprint)
            keep(self._entries, reference, entry)
        if entry.plan.fingerprint != fingerprint:
            raise Unfit(
                f"this worker's code of '{reference}' has fingerprint {entry.plan.fingerprint[:12]}, "
                f"the run was started with {fingerprint[:12]}; a worker with that code will carry it on"
            )
        return entry

    def agent(self, agent: Any) -> Any:
        """Find a step's live agent; a reference is imported, a declared one is made."""
        if not isinstance(agent, DeclaredAgent):
            return self._found(agent, "agent")
        made = self._live.get(agent)
        if made is None:
            made = make_declared(agent, lambda named: load(named, allowed=self._allowed, what="tool"))
            keep(self._live, agent, made)
        return made

    def resources(self, named: Any) -> Any:
        """Find live resources; a reference is imported."""
        return self._found(named, RESOURCES)

    def _found(self, thing: Any, what: str) -> Any:
        if not isinstance(thing, str):
            return thing
        live = self._live.get(thing)
        if live is None:
            live = load(thing, allowed=self._allowed, what=what)
            keep(self._live, thing, live)
        return live

    def _load(self, reference: str, fingerprint: str) -> Entry:
        try:
            pipeline = (
                self._built(reference, fingerprint)
                if is_blueprint(reference)
                else load_pipeline(reference, allowed=self._allowed)
            )
        except Unfit:
            raise
        except FlujoError as error:
            raise Unfit(f"this worker cannot load its pipeline: {error.message}") from error
        except Exception as error:
            raise Unfit(f"importing '{reference}' raised {type(error).__name__}: {error}") from error
        plan = compile_plan(pipeline, default_name=reference.rpartition(":")[2])
        return Entry(pipeline, plan, dict(walk(pipeline)))

    def _built(self, reference: str, fingerprint: str) -> Pipeline:
        """Build a pipeline of the text that was stored with its plan, if that is the text the reference names."""
        plan = self._plan_of(fingerprint)
        text = None if plan is None else plan.blueprint
        if text is None or blueprint_reference(text) != without_resources(reference):
            raise Unfit(f"no blueprint is stored that '{reference}' names")
        return having_resources(load_stored(text, allowed=self._allowed), reference)


def keep(known: dict[Any, Any], key: Any, value: Any) -> None:
    """Keep a value, and let go of the one that was found first when there are too many; threads may do so at once."""
    known[key] = value
    if len(known) > MOST_KEPT:
        known.pop(list(known)[0], None)  # noqa: RUF015 - an iterator would break if another thread keeps something meanwhile
