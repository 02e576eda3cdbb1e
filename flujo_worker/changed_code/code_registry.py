"""The live pipelines of this process, found by reference and held to the fingerprint a run was started with."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from flujo_client.contract.code import AwaitedCode, ParkCause
from flujo_client.contract.envelope import Envelope
from flujo_client.errors import CodeMissing, FlujoError, KeyMissing
from flujo_client.pipeline.agents import DeclaredAgent
from flujo_client.pipeline.compile import compile_plan
from flujo_client.pipeline.hooks import HOOK, INVARIANT, judge_of
from flujo_client.pipeline.nested import ImportStep
from flujo_client.pipeline.pipeline import Pipeline, walk
from flujo_client.pipeline.reference import (
    RESOURCES,
    bare,
    blueprint_reference,
    default_name,
    is_blueprint,
    load,
    load_pipeline,
    with_reference_options,
)
from flujo_client.pipeline.step import Step
from flujo_client.plan.plan import Node, Nodes, Plan
from flujo_worker.agents.declared import make_declared
from flujo_worker.errors import WorkerError
from flujo_worker.runtime.faults import missing_package

_NOT_HERE = ("UNKNOWN_REFERENCE", "IMPORT_FAILED")


class CodeMismatch(Exception):
    """This worker cannot carry the run on: its code is missing, forbidden, or not the code the run was started with.

    `awaited` is what the run waits for if its plan is here, and bodies of functions are not; `loaded` the pipeline that is here instead of
    its own; `cause` why the run is parked for it, if another worker does not take it.
    """

    def __init__(
        self,
        message: str,
        *,
        awaited: AwaitedCode | None = None,
        loaded: LoadedPipeline | None = None,
        cause: ParkCause | None = None,
    ) -> None:
        super().__init__(message)
        self.awaited, self.loaded, self._cause = awaited, loaded, cause

    @property
    def cause(self) -> ParkCause:
        """Return why the run is parked for it."""
        return self._cause or ParkCause("import" if self.loaded is None else "code", self.why)

    @property
    def why(self) -> str:
        """Return why the code did not load, without what that means to a worker."""
        return self.__cause__.message if isinstance(self.__cause__, FlujoError) else str(self)


class CodeNotHere(CodeMismatch):
    """Code or a package that a step or a value of the run needs cannot be loaded here."""


def lack_in(error: BaseException | None) -> KeyMissing | CodeMismatch | None:
    """Return what this process lacks, if that is why an error was raised: then it says nothing about the run, and others take its attempt.

    That is the one rule for it, wherever the error was raised: a key, code, a class or deserializer of a value, or a package. A module that
    is missing in the middle of a step's own code is a bug of that step.
    """
    if package := error and missing_package(error):
        return CodeNotHere(f"this worker lacks a package: {package}")
    while error is not None:
        if isinstance(error, (KeyMissing, CodeMismatch)):
            return error
        if isinstance(error, CodeMissing):
            return CodeNotHere(f"this worker cannot read a value: {error.message}")
        error = error.__cause__ or error.__context__
    return None


@dataclass(frozen=True)
class LoadedPipeline:
    """A pipeline with its plan and its steps, by their paths in it."""

    pipeline: Pipeline
    plan: Plan
    steps: dict[str, Step]

    def node_of(self, envelope: Envelope) -> Node:
        return self.plan.node(envelope.address, envelope.step)

    def resources_at(self, path: str) -> Any:
        """Return what the innermost pipeline around a step names as its resources."""
        named = [pipeline.resources for _, pipeline in self._around(path) if pipeline.resources is not None]
        return named[-1] if named else None

    def invariants_at(self, path: str) -> Sequence[Any]:
        """Return the static invariants of a step: its own, and those of each pipeline around it that has the same context."""
        named = list(self.steps[path].static_invariants)
        for at, pipeline in reversed(list(self._around(path))):
            named = [*pipeline.static_invariants, *named]
            around = self.steps.get(at.rpartition("/")[0])
            if isinstance(around, ImportStep) and not around.inherit_context:
                break
        return named

    def hooks_of_run(self, root: str) -> Sequence[Any]:
        """Return the hooks of a run: those of the pipeline that begins at `root`, an address; none where no pipeline does."""
        body = self._body(root)
        return next((pipeline.hooks for at, pipeline in self._around(f"{body}/") if at == body), ())

    def hooks_at(self, root: str, path: str) -> Sequence[Any]:
        """Return the hooks of a step in a run that begins at `root`: those of the run's own pipeline, then of each around the step.

        Of a run in the background that is one step, its own pipeline is the one that the step is written in.
        """
        around, body = list(self._around(path)), self._body(root)
        outer = [place for place, (at, _) in enumerate(around) if not at or at == body or body.startswith(f"{at}/")]
        return [hook for _, pipeline in around[outer[-1] :] for hook in pipeline.hooks]

    def name_at(self, root: str) -> str:
        """Return the name that a run that begins at `root` is listed under."""
        body = self._body(root)
        own = next((pipeline for at, pipeline in self._around(f"{body}/") if at == body), None)
        named = self.plan.name if not body else body.split("/")[-2]
        return (own.name if own is not None else None) or named

    def _body(self, root: str) -> str:
        """Return the path in the plan of the body at an address."""
        nodes = self.plan.locate(root).nodes or Nodes()
        return nodes[0].path.rpartition("/")[0]

    def _around(self, path: str) -> Iterator[tuple[str, Pipeline]]:
        """Yield the pipelines around a step with the paths of the bodies they are, outermost first."""
        yield "", self.pipeline
        parts = path.split("/")
        for end in range(1, len(parts) - 1, 2):
            at = "/".join(parts[: end + 1])
            if at in self._pipelines:
                yield at, self._pipelines[at]

    @cached_property
    def _pipelines(self) -> dict[str, Pipeline]:
        """Return the pipelines that are in it, by the paths of the bodies they are."""
        bodies = ((f"{path}/{key}", body) for path, step in self.steps.items() for key, body in step.bodies().items())
        return {path: body for path, body in bodies if isinstance(body, Pipeline)}


MAX_ENTRIES = 1_000
"""The maximum number of pipelines, agents and resources that a process caches: modules hold few, blueprints may come and go."""


class CodeRegistry:
    """Finds pipelines, agents and resources; each is resolved once per process.

    `plan_of` finds the plan of a fingerprint, which has the text of a blueprint; `on_loaded` is called with the fingerprint of each
    imported pipeline.
    """

    def __init__(
        self,
        allowed: Sequence[str],
        plan_of: Callable[[str], Plan | None],
        on_loaded: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._allowed, self._plan_of, self._on_loaded = tuple(allowed), plan_of, on_loaded
        self._entries: dict[str, LoadedPipeline] = {}
        self._loading: dict[str, threading.Lock] = {}
        self._live: dict[Any, Any] = {}

    def has(self, reference: str) -> bool:
        return reference in self._entries

    def loaded(self, reference: str) -> LoadedPipeline:
        return self._entries[reference]

    def known(self, reference: str, fingerprint: str) -> LoadedPipeline | None:
        """Return the pipeline of a run if this process has loaded it."""
        entry = self._entries.get(reference)
        return entry if entry is not None and entry.plan.fingerprint == fingerprint else None

    def entry(self, reference: str, fingerprint: str) -> LoadedPipeline:
        """Find the pipeline of a run. Raises CodeMismatch: with the reason that the run is parked for."""
        entry = self.here(reference, fingerprint)
        if entry.plan.fingerprint != fingerprint:
            here, then = entry.plan.fingerprint[:12], fingerprint[:12]
            what = f"this worker's code of '{reference}' has fingerprint {here}, the run was started with {then}"
            raise CodeMismatch(f"{what}; a worker with that code will continue it", loaded=entry)
        return entry

    def here(self, reference: str, fingerprint: str = "") -> LoadedPipeline:
        """Find the pipeline that this process has under a reference, whatever runs use; raises CodeMismatch where it has none.

        Threads that want the same one load it once; two pipelines are loaded at the same time. `fingerprint` is of the plan that has the text of a blueprint; no other reference needs one.
        """
        if (entry := self._entries.get(reference)) is not None:
            return entry
        with self._loading.setdefault(reference, threading.Lock()):
            if (entry := self._entries.get(reference)) is None:
                entry = self._load(reference, fingerprint)
                put_bounded(self._entries, reference, entry)
                self._loading.pop(reference, None)
                if not is_blueprint(reference):  # every worker has its code
                    self._on_loaded(entry.plan.fingerprint)
        return entry

    def order(self, reference: str, fingerprint: str) -> dict[str, Any]:
        """Return the arguments with which another process, which has no database, can `obey`: it loads the pipeline as this one would."""
        plan = self._plan_of(fingerprint) if is_blueprint(reference) else None
        tree = None if plan is None else plan.to_tree()
        return {"reference": reference, "fingerprint": fingerprint, "allowed": self._allowed, "plan": tree}

    @classmethod
    def obey(
        cls, reference: str, fingerprint: str, allowed: Sequence[str], plan: dict[str, Any] | None
    ) -> LoadedPipeline:
        """Load what an `order` names. Raises what `entry` raises."""
        return cls(allowed, lambda _: Plan.from_tree(plan) if plan else None).entry(reference, fingerprint)

    def agent(self, agent: Any) -> Any:
        """Find a step's live agent; a reference is imported, a declared one is made."""
        if not isinstance(agent, DeclaredAgent):
            return self._found(agent, "agent")
        made = self._live.get(agent)
        if made is None:
            made = make_declared(agent, partial(self._load_thing, what="tool"))
            put_bounded(self._live, agent, made)
        return made

    def resources(self, named: Any) -> Any:
        return self._found(named, RESOURCES)

    def hook(self, named: Any) -> Any:
        return self._found(named, HOOK)

    def invariant(self, named: Any) -> Any:
        return judge_of(named, partial(self._found, what=INVARIANT))

    def _found(self, thing: Any, what: str) -> Any:
        if not isinstance(thing, str):
            return thing
        live = self._live.get(thing)
        if live is None:
            live = self._load_thing(thing, what=what)
            put_bounded(self._live, thing, live)
        return live

    def _load_thing(self, reference: str, *, what: str) -> Any:
        try:
            return load(reference, allowed=self._allowed, what=what)
        except FlujoError as error:
            if error.error_code not in _NOT_HERE:
                raise
            raise CodeNotHere(f"this worker cannot load a step: {error.message}{_way_out(error, reference)}") from error

    def _load(self, reference: str, fingerprint: str) -> LoadedPipeline:
        try:
            if is_blueprint(reference):
                pipeline = self._built(reference, fingerprint)
            else:
                pipeline = load_pipeline(reference, allowed=self._allowed)
            plan = compile_plan(pipeline, default_name=default_name(reference))
        except (CodeMismatch, WorkerError):
            raise
        except FlujoError as error:
            why = f"{error.message}{_way_out(error, reference)}"
            raise CodeMismatch(f"this worker cannot load its pipeline: {why}") from error
        except Exception as error:
            raise CodeMismatch(f"importing '{reference}' raised {type(error).__name__}: {error}") from error
        return LoadedPipeline(pipeline, plan, dict(walk(pipeline)))

    def _built(self, reference: str, fingerprint: str) -> Pipeline:
        """Build a pipeline of the text that was stored with its plan, if that is the text the reference names."""
        from flujo_client.blueprint.load import load_stored

        plan = self._plan_of(fingerprint)
        text = None if plan is None else plan.blueprint
        if text is None or blueprint_reference(text) != bare(reference):
            raise CodeMismatch(f"no blueprint is stored under '{reference}'")
        return with_reference_options(load_stored(text, allowed=self._allowed), reference)


def _way_out(error: FlujoError, reference: str) -> str:
    """Return how to make a missing module available to this worker."""
    missing = getattr(error.__cause__, "name", None) if isinstance(error.__cause__, ModuleNotFoundError) else None
    if missing is None:
        return ""
    if not f"{reference.partition(':')[0]}.".startswith(f"{missing}."):
        return f"; install '{missing}' where workers run"
    start = f"; this worker was started in {Path.cwd()}: start it in the folder that holds '{missing}'"
    return f"{start}, set PYTHONPATH to that folder, or install '{missing}' as a package"


def put_bounded(known: dict[Any, Any], key: Any, value: Any, *, most: int | None = None) -> None:
    """Store a value, and drop the oldest one when there are too many; safe from several threads."""
    known[key] = value
    if len(known) > (most or MAX_ENTRIES):
        known.pop(list(known)[0], None)  # noqa: RUF015 - an iterator would break if another thread adds something meanwhile
