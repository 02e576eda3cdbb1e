"""Runs of a Celery app that runs its tasks eagerly, as tests have it: at once, in memory, and in the thread that enqueues or publishes them.

In that thread the transaction of a Django test is open, which no other thread sees.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, NoReturn, ParamSpec, TypeVar

from flujo_client.api.client import FlujoClient
from flujo_client.api.handle import RunHandle
from flujo_client.api.operations import Enqueued
from flujo_client.config.manager import ConfigManager
from flujo_client.contract.results import PipelineResult
from flujo_client.errors import ClientError, IdempotencyConflict, RunNotFound
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.step import Step
from flujo_worker.concurrency.threads import Threads, perform_call
from flujo_worker.testing.local_engine import LocalEngine

P = ParamSpec("P")
T = TypeVar("T")

_UNUSED = ("connection", "deadline_s")
"""Options without a meaning here: nothing is stored, and no time passes."""


class EagerRuns:
    """The runs that a client has enqueued, in place of its connections."""

    def __init__(self, client: FlujoClient) -> None:
        self._client = client
        self._runs: dict[str, EagerRun] = {}
        self._keyed: dict[tuple[str, str], EagerRun] = {}
        """The runs by tenant and idempotency key."""

    def enqueue(self, pipeline: str | Pipeline | Step, value: Any, options: dict[str, Any]) -> EagerRun:
        """Check a pipeline and its options, and return the run that has its id or key.

        Otherwise perform a new one, unless it is part of a transaction, which is to be committed first.
        """
        settings = self._client.settings
        order = {name: each for name, each in options.items() if name not in _UNUSED}
        with LocalEngine(settings) as engine:
            order["run_id"] = run_id = engine.enqueue(pipeline, value, **order)
            digest = engine.stores.tables.run(run_id).digest

        def perform() -> PipelineResult:
            threads = _CallingThread()
            with LocalEngine(settings, threads=threads) as engine:
                return threads.serve(lambda: engine.run(pipeline, value, **order))

        key = options.get("tenant") or "", options.get("idempotency_key") or ""
        run = self._again(run_id, key, digest)
        if run is None:
            run = self._runs[run_id] = self._keyed[key] = EagerRun(self._client, run_id, EagerWork(digest, perform))
        if options.get("connection") is None:
            run.publish()
        return run

    def _again(self, run_id: str, key: tuple[str, str], digest: str) -> EagerRun | None:
        """Return another handle of the run with this id or this tenant and key; raises IdempotencyConflict if its work is other."""
        known = self._runs.get(run_id) or (self._keyed.get(key) if key[1] else None)
        if known is None:
            return None
        if known.work.digest != digest:
            what = f"run {known.id} was enqueued with another pipeline, input, context or tenant"
            raise IdempotencyConflict(what, suggestion="use another id or key for other work")
        return EagerRun(self._client, known.id, known.work, is_new=False)

    def get_run(self, run_id: str) -> EagerRun:
        """Find a run; raises RunNotFound."""
        if run_id not in self._runs:
            raise RunNotFound(f"no run '{run_id}' of this client")
        return self._runs[run_id]

    def perform(self, _: object) -> Any:
        """Refuse what needs a database."""
        raise _unavailable()

    def close(self) -> None:
        """Do nothing: no connection is open."""


def _unavailable() -> ClientError:
    return ClientError(
        "this Celery app runs tasks eagerly: its runs have only `status`, `result` and `publish`",
        suggestion="use flujo_worker.testing.LocalEngine for other tests; elsewhere unset task_always_eager",
    )


@dataclass
class EagerWork:
    """The work of a run, which all its handles share: its digest, how it is performed, and its result once it is."""

    digest: str
    perform: Callable[[], PipelineResult]
    result: PipelineResult | None = None


class EagerRun(RunHandle):
    """A run that is performed when it is published."""

    def __init__(self, client: FlujoClient, run_id: str, work: EagerWork, *, is_new: bool = True) -> None:
        super().__init__(client, Enqueued(run_id, is_new=is_new))
        self.work = work

    def publish(self) -> None:
        """Perform the run, once; with `task_eager_propagates`, raise what it failed with."""
        if self.work.result is None:
            self.work.result = self.work.perform()
            if ConfigManager.attached is not None and ConfigManager.attached.conf.task_eager_propagates:
                self.work.result.raise_for_status()

    def status(self) -> str:
        return "queued" if self.work.result is None else self.work.result.run_status

    def result(self, timeout: float | None = None, *, check: bool = True) -> PipelineResult:  # noqa: ARG002 - no one waits
        """Perform the run, unless that is done, and return its result."""
        self.publish()
        assert self.work.result is not None
        return self.work.result if check else self.work.result.unchecked()

    def stream(self, after: str | None = None) -> NoReturn:  # noqa: ARG002 - as every run's
        """Refuse: no stream is stored."""
        raise _unavailable()


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
