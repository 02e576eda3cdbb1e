"""The live pipelines of this process, found by reference and held to the fingerprint a run was started with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flujo_client.errors import FlujoError
from flujo_client.pipeline.compose import Pipeline
from flujo_client.pipeline.hooks import HOOK
from flujo_client.pipeline.plan import Plan, compile_plan
from flujo_client.pipeline.reference import RESOURCES, load, load_pipeline
from flujo_client.pipeline.walk import walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
        named = [pipeline.resources for _, pipeline in self._around(path) if pipeline.resources is not None]
        return named[-1] if named else None

    def hooks_of_run(self, root: str) -> Sequence[Any]:
        """The hooks that are told of a run: those of the pipeline that begins at `root`, an address; none where no pipeline does."""
        body = self._body(root)
        return next((pipeline.hooks for at, pipeline in self._around(f"{body}/") if at == body), ())

    def hooks_at(self, root: str, path: str) -> Sequence[Any]:
        """The hooks that are told of a step in a run that begins at `root`: those of the run's own pipeline, then of each around the step.

        Of a run in the background that is one step, its own pipeline is the one that the step is written in.
        """
        around, body = list(self._around(path)), self._body(root)
        outer = [place for place, (at, _) in enumerate(around) if not at or at == body or body.startswith(f"{at}/")]
        return [hook for _, pipeline in around[outer[-1] :] for hook in pipeline.hooks]

    def name_at(self, root: str) -> str:
        """What a run that begins at `root` is listed under."""
        body = self._body(root)
        own = next((pipeline for at, pipeline in self._around(f"{body}/") if at == body), None)
        named = self.plan.name if not body else body.split("/")[-2]
        return (own.name if own is not None else None) or named

    def _body(self, root: str) -> str:
        """The path in the plan of the body that stands at an address."""
        nodes = self.plan.locate(root).nodes or ()
        return nodes[0].path.rpartition("/")[0]

    def _around(self, path: str) -> Iterator[tuple[str, Pipeline]]:
        """The pipelines around a step with the paths of the bodies they are, outermost first."""
        yield "", self.pipeline
        parts = path.split("/")
        for end in range(1, len(parts) - 1, 2):
            body = self.steps["/".join(parts[:end])].bodies()[parts[end]]
            if isinstance(body, Pipeline):
                yield "/".join(parts[: end + 1]), body


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

    def hook(self, named: Any) -> Any:
        """Find a live hook; a reference is imported."""
        return self._found(named, HOOK)

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
