"""Runs of a Celery app that runs its tasks eagerly, as tests have it: at once, in memory, and in the thread that enqueues or publishes them.

In that thread the transaction of a Django test is open, which no other thread sees.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from flujo_client.api.handle import RunHandle
from flujo_client.api.operations import Enqueued
from flujo_client.config.manager import ConfigManager
from flujo_client.contract.results import PipelineResult
from flujo_client.errors import ClientError, RunNotFound
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.reference import load_pipeline
from flujo_client.pipeline.step import Step
from flujo_worker.concurrency.threads import Threads, perform_call
from flujo_worker.testing.local_engine import LocalEngine

if TYPE_CHECKING:
    from flujo_client.api.client import FlujoClient

P = ParamSpec("P")
T = TypeVar("T")

_UNUSED = ("connection", "deadline_s")
"""Options without a meaning here: nothing is stored, and no time passes."""


class EagerRuns:
    """The runs that a client has enqueued, in place of its connections."""

    def __init__(self, client: FlujoClient) -> None:
        self._client = client
        self._runs: dict[str, EagerRun] = {}

    def enqueue(self, pipeline: str | Pipeline | Step, value: Any, options: dict[str, Any]) -> EagerRun:
        """Check a pipeline and its options; perform the run, unless it is part of a transaction, which is to be committed first."""
        settings = self._client.settings
        found = load_pipeline(pipeline, allowed=settings.allowed_imports) if isinstance(pipeline, str) else pipeline
        live = Pipeline.from_step(found) if isinstance(found, Step) else found
        order = {name: each for name, each in options.items() if name not in _UNUSED}
        with LocalEngine(settings) as engine:
            order["run_id"] = run_id = engine.enqueue(live, value, **order)

        def perform() -> PipelineResult:
            threads = _CallingThread()
            with LocalEngine(settings, threads=threads) as engine:
                return threads.serve(lambda: engine.run(live, value, **order))

        run = self._runs.setdefault(run_id, EagerRun(self._client, run_id, perform))
        if options.get("connection") is None:
            run.publish()
        return run

    def get_run(self, run_id: str) -> EagerRun:
        """Find a run; raises RunNotFound."""
        if run_id not in self._runs:
            raise RunNotFound(run_id)
        return self._runs[run_id]

    def perform(self, _: object) -> Any:
        """Refuse what needs a database."""
        raise ClientError(
            "this Celery app runs tasks eagerly: its runs have only `status`, `result` and `publish`",
            suggestion="use flujo_worker.testing.LocalEngine for other tests; elsewhere unset task_always_eager",
        )

    def close(self) -> None:
        """Do nothing: no connection is open."""


class EagerRun(RunHandle):
    """A run that is performed when it is published."""

    def __init__(self, client: FlujoClient, run_id: str, perform: Callable[[], PipelineResult]) -> None:
        super().__init__(client, Enqueued(run_id, is_new=True))
        self._perform = perform
        self._result: PipelineResult | None = None

    def publish(self) -> None:
        """Perform the run, once; with `task_eager_propagates`, raise what it failed with."""
        if self._result is None:
            self._result = self._perform()
            if ConfigManager.attached is not None and ConfigManager.attached.conf.task_eager_propagates:
                self._result.raise_for_status()

    def status(self) -> str:
        """Return the run's status."""
        return "queued" if self._result is None else self._result.run_status

    def result(self, timeout: float | None = None, *, check: bool = True) -> PipelineResult:  # noqa: ARG002 - no one waits
        """Perform the run, unless that is done, and return its result."""
        self.publish()
        assert self._result is not None
        return self._result if check else self._result.unchecked()


class _CallingThread(Threads):
    """Has the calls of user code made by the thread that waits for the engine."""

    def __init__(self) -> None:
        super().__init__("flujo-eager")
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Hand a call to the thread that serves."""
        future: Future[T] = Future()
        self._calls.put(partial(perform_call, future, partial(fn, *args, **kwargs)))
        return future

    def serve(self, work: Callable[[], T]) -> T:
        """Do the engine's work in a thread, and make in this one the calls that it submits; return the work's result."""
        done = super().submit(work)
        done.add_done_callback(lambda _: self._calls.put(None))
        while (call := self._calls.get()) is not None:
            call()
        return done.result()
