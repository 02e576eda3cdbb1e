"""`Flujo(pipeline).run(...)`: the original's facade, over enqueue and wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, TypedDict, Unpack

from pydantic import BaseModel

from flujo_client.api.client import AsyncFlujoClient, FlujoClient
from flujo_client.api.handle import RunHandle
from flujo_client.api.operations import LOOK_AGAIN_S, peek_at, result_of, wait_for
from flujo_client.api.options import refuse_unknown
from flujo_client.api.original_options import OriginalOptions, check_original, settings_for
from flujo_client.config.manager import Settings
from flujo_client.contract import results
from flujo_client.contract.limits import UsageLimits
from flujo_client.contract.parameters import ContextT, OutputT
from flujo_client.contract.records import LIVE_RUN, EventRecord
from flujo_client.contract.results import PipelineResult, StepOutcome
from flujo_client.embedded.local import LOG, Fleet
from flujo_client.errors import ClientError, ConfigurationError
from flujo_client.gateway import requests
from flujo_client.gateway.effects import Operation
from flujo_client.pipeline.nested import ImportStep
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.reference import load_pipeline, reference_with_options
from flujo_client.pipeline.step import Step
from flujo_client.pipeline.submit import build_context
from flujo_client.streams.follow import ENDED, reading_stream

if TYPE_CHECKING:
    from flujo_client.api.registry import PipelineRegistry

STREAM_EVERY_S = 0.05
LOOKING_COSTS = 5
"""A look at a run with thousands of iterations takes a while: a stream waits so many times as long before the next one."""


class StartOptions(TypedDict, total=False):
    """The options of one run of a `Flujo`."""

    run_id: str | None
    """An id of your own; the same id again waits for that run, or reads its result."""
    initial_context_data: Mapping[str, Any] | None
    """Context data of this run, which overrides the facade's."""


class Flujo(Generic[OutputT, ContextT]):
    """Enqueue one pipeline and wait for its result.

    It connects on first use. With embedded services and no worker, it starts a worker process, until `close`. Use it in `with` or
    `async with`.

    Args:
        pipeline: the pipeline; or None with `registry` and `pipeline_name`.
        context_model: the model of the context, if the pipeline has none.
        initial_context_data: context data that every run starts with.
        resources: replaces the pipeline's `resources`: `"module:attribute"`, or the object with that name.
        hooks: called after the pipeline's own `hooks`: module-level functions, or `"module:attribute"`.
        registry: a registry of pipelines.
        pipeline_name: the name in the registry; without a registry, the name that the pipeline must have.
        pipeline_version: the version in the registry, or "latest"; without a registry, the version that the pipeline must have.
        pipeline_id: stored in the runs' metadata, for `list_runs(metadata={"pipeline_id": …})`.
        usage_limits: what each run and its child runs may spend.
        state_backend: the URL of the Postgres that holds the runs, instead of the project's `database_url`.
        settings: as for FlujoClient.
        original: further options of the original project, with their default values only.

    Raises:
        PipelineError: workers could not find the resources, a hook, or their pipeline.
        ConfigurationError: there is no such pipeline, or an option would have no effect.
    """

    def __init__(  # noqa: PLR0913 - the original's options
        self,
        pipeline: str | Pipeline[OutputT, ContextT] | Step[OutputT] | None = None,
        *,
        context_model: type[BaseModel] | None = None,
        initial_context_data: Mapping[str, Any] | None = None,
        resources: Any = None,
        hooks: Sequence[Any] | None = None,
        registry: PipelineRegistry | None = None,
        pipeline_name: str | None = None,
        pipeline_version: str = "latest",
        pipeline_id: str | None = None,
        usage_limits: UsageLimits | None = None,
        state_backend: str | None = None,
        settings: Settings | None = None,
        **original: Unpack[OriginalOptions],
    ) -> None:
        check_original(original)
        found = _chosen(pipeline, registry, pipeline_name, pipeline_version)
        has_options = resources is not None or hooks
        self._pipeline = reference_with_options(found, resources=resources, hooks=hooks or ()) if has_options else found
        self._context_model, self._initial = context_model, dict(initial_context_data or {})
        self._limits, self._metadata = usage_limits, {"pipeline_id": pipeline_id} if pipeline_id else {}
        self._settings = settings_for(state_backend, settings)
        self._fleet: Fleet | None = None

    @cached_property
    def client(self) -> FlujoClient:
        """Return the client this facade enqueues through."""
        return FlujoClient(self._settings)

    @property
    def has_started_worker(self) -> bool:
        """Return whether this facade has started a worker process."""
        return self._fleet is not None

    def close(self) -> None:
        """Stop what this facade started."""
        if self._fleet is not None:
            self._fleet.stop()
        if "client" in self.__dict__:
            self.client.close()

    async def aclose(self) -> None:
        """Stop what this facade started, while other tasks continue."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def as_step(self, name: str, *, inherit_context: bool = True, **options: Any) -> ImportStep:
        """Make a step that runs this pipeline inside another one, with its resources, hooks and limits.

        Args:
            name: the step's.
            inherit_context: begin with the other pipeline's context.
            options: all else that `ImportStep` takes.

        Raises:
            ConfigurationError: the facade has context data or a context model, which a step takes from the pipeline around it.
        """
        if self._initial or self._context_model is not None:
            message = f"as_step('{name}'): a step takes its context from the pipeline around it"
            way_out = "give context_model and initial_context_data to the Flujo that runs the whole"
            raise ConfigurationError(message, suggestion=way_out)
        body: Any = self._pipeline
        if isinstance(body, str):
            body = load_pipeline(body, allowed=["*"])
        elif isinstance(body, Step):
            body = Pipeline.from_step(body)
        limits = {} if self._limits is None else {"usage_limits": self._limits}
        step: ImportStep = body.as_step(name, inherit_context=inherit_context, **{**limits, **options})
        return step

    async def resume_async(self, paused_result: PipelineResult | str, human_input: Any = None) -> PipelineResult:
        """Continue a run that any process started: wait for its end or its next question, and return the result.

        Args:
            paused_result: the run's id, or an earlier result of it.
            human_input: the answer to the run's open question; without one, only wait.

        Raises:
            ResumeError: there is an answer and the run has no open question, or it does not fit.
            RunNotFound: there is no such run.
        """
        run_id = paused_result if isinstance(paused_result, str) else paused_result.run_id
        async with AsyncFlujoClient(self.client.settings) as client:
            run = await client.get_run(run_id)
            if human_input is not None:
                await run.resume(human_input)
            self._need_worker()
            return await client.perform(_result_of(client.settings, run_id, None))

    def run(
        self, value: Any = None, *, timeout: float | None = None, **options: Unpack[StartOptions]
    ) -> PipelineResult[OutputT, ContextT]:
        """Enqueue, wait for the end or for a question to a person, and return the result.

        With an open question, `run_status` is `paused` and `signals` has the question; `resume_async` answers it.

        Args:
            value: the first step's input.
            timeout: seconds to wait before WaitTimedOut is raised.
            options: those of `StartOptions`.
        """
        run = self.start(value, **options)
        return self.client.perform(_result_of(self.client.settings, run.id, timeout))

    def start(
        self, value: Any = None, *, stream: bool | None = None, **options: Unpack[StartOptions]
    ) -> RunHandle[OutputT, ContextT]:
        """Enqueue and do not wait; `stream` is that of `enqueue`, and the other options are those of `run`."""
        refuse_unknown(options, StartOptions, "start")
        context: Any = {**self._initial, **(options.get("initial_context_data") or {})} or None
        if self._context_model is not None:
            context = build_context(context, self._context_model)
        own: Any = {"context": context, "limits": self._limits, "metadata": self._metadata}
        run = self.client.enqueue(self._pipeline, value, **own, run_id=options.get("run_id"), stream=stream)
        self._need_worker()
        return run

    async def run_async(self, value: Any = None, **options: Unpack[StartOptions]) -> PipelineResult:
        """Do as `run`, asynchronously."""
        run = self.start(value, **options)
        async with AsyncFlujoClient(self.client.settings) as client:
            return await client.perform(_result_of(client.settings, run.id, None))

    def run_outcomes(
        self, value: Any = None, **options: Unpack[StartOptions]
    ) -> Iterator[StepOutcome | PipelineResult]:
        """Yield what `run_stream` does but for the text, without asyncio."""
        run, seen = self.start(value, **options), 0
        while True:
            began = time.monotonic()
            result: PipelineResult = self.client.perform(peek_at(self.client.settings, run.id))
            yield from _news(result, seen)
            if _is_over(result):
                return
            seen = len(result.step_history)
            time.sleep(_pause(began))

    def run_stream(
        self, value: Any = None, **options: Unpack[StartOptions]
    ) -> AsyncIterator[StepOutcome | PipelineResult]:
        """Yield a `Chunk` for each piece of text that a step says, each top-level step's outcome as it ends, and at the end the result.

        A container is one step. The result's `signals` come before it. The stream ends at a question to a person, with a `Paused` for each. Text of an attempt that fails is not taken back;
        `RunHandle.stream` says where it is withdrawn. Without Redis there are no chunks.
        """
        return self._outcomes(value, options, must_stream=False)

    async def stream_async(
        self, value: Any = None, **options: Unpack[StartOptions]
    ) -> AsyncIterator[str | PipelineResult]:
        """Yield the text of each `Chunk` of `run_stream`, then the result, at the end or at a question to a person.

        Raises ConfigurationError: there is no Redis.
        """
        async for each in self._outcomes(value, options, must_stream=True):
            if isinstance(each, results.Chunk):
                yield each.data
            elif isinstance(each, PipelineResult):
                yield each

    async def _outcomes(
        self, value: Any, options: StartOptions, *, must_stream: bool
    ) -> AsyncIterator[StepOutcome | PipelineResult]:
        is_streamed = must_stream or self.client.settings.has_redis
        run, seen = await asyncio.to_thread(self.start, value, stream=is_streamed or None, **options), 0
        until = (*ENDED, "paused")
        async with AsyncFlujoClient(self.client.settings) as client:
            with reading_stream(client.settings, run.id, None, until) if is_streamed else nullcontext() as stream:
                while True:
                    try:
                        page = await client.perform(stream.next_page()) if stream and is_streamed else []
                    except ClientError as error:  # it was enqueued before, without a stream
                        if must_stream or error.error_code != "NO_STREAM":
                            raise
                        is_streamed, page = False, []
                    for event in page:
                        if event.text:
                            yield results.Chunk(data=event.text, step_name=event.step)
                    if page and all(event.kind == "token" for event in page):
                        continue
                    began = time.monotonic()
                    result: PipelineResult = await client.perform(peek_at(client.settings, run.id))
                    if page and page[-1].kind != "end" and _is_over(result):
                        continue  # its last text is still to come
                    for each in _news(result, seen):
                        yield each
                    if _is_over(result):
                        return
                    seen = len(result.step_history)
                    await asyncio.sleep(_pause(began))

    async def run_with_events(
        self, value: Any = None, **options: Unpack[StartOptions]
    ) -> AsyncIterator[EventRecord | PipelineResult]:
        """Yield the run's events as they happen, then its result, at the end or at a question to a person."""
        run, after = await asyncio.to_thread(self.start, value, **options), None
        async with AsyncFlujoClient(self.client.settings) as client:
            while True:
                began = time.monotonic()
                result: PipelineResult = await client.perform(peek_at(client.settings, run.id))
                while page := await client.ask(requests.events(run.id, after=after, settled=not _is_over(result))):
                    for event in page:
                        yield event
                    after = page[-1].cursor
                if _is_over(result):
                    yield result
                    return
                await asyncio.sleep(_pause(began))

    def _need_worker(self) -> None:
        """Start a worker if embedded services have none: runs would wait forever. Other services have their own workers."""
        if not self.client.is_embedded or self._fleet is not None:
            return
        if not any(worker.is_live for worker in self.client.ask(requests.workers())):
            self._fleet = Fleet(self.client.settings, log=Path(self.client.settings.embedded_dir) / LOG)
            self._fleet.start()


def _result_of(settings: Settings, run_id: str, timeout: float | None) -> Operation[PipelineResult]:
    """Wait for a run's end or question. What holds it is looked for later than elsewhere: workers that `Flujo` started need some seconds."""
    run = yield from wait_for(settings, run_id, timeout, through_pauses=False, first_look_s=LOOK_AGAIN_S)
    return (yield from result_of(settings, run))


def _is_over(result: PipelineResult) -> bool:
    """Return whether no outcome will come before a person answers."""
    return result.run_status not in LIVE_RUN or result.run_status == "paused"


def _news(result: PipelineResult, seen: int) -> Iterator[StepOutcome | PipelineResult]:
    """Yield what is new in a result, after the number of steps that were already seen."""
    yield from map(_outcome, result.step_history[seen:])
    if _is_over(result):
        yield from result.signals
        yield result


def _pause(began: float) -> float:
    """Return the seconds to wait after a look that began then."""
    return max(STREAM_EVERY_S, LOOKING_COSTS * (time.monotonic() - began))


def _outcome(step: results.StepResult) -> StepOutcome:
    if step.metadata_.get("is_background"):
        return results.BackgroundLaunched(task_id=step.metadata_["child_run"], step_name=step.name)
    return (
        results.Success(step_result=step) if step.success else results.Failure(feedback=step.feedback, step_result=step)
    )


def _chosen(pipeline: Any, registry: PipelineRegistry | None, name: str | None, version: str) -> Any:
    """Return the pipeline that is meant; raise for a name or a version that it does not have, for no run would have it."""
    if pipeline is None:
        if registry is None or name is None:
            raise ConfigurationError("Flujo needs a pipeline, or a registry and a pipeline_name")
        found = registry.get_latest(name) if version == "latest" else registry.get(name, version)
        if found is None:
            raise ConfigurationError(f"no pipeline '{name}' {version} is registered")
        return found
    own = {"name": getattr(pipeline, "name", None), "version": getattr(pipeline, "version", None)}
    for what, asked in (("name", name), ("version", None if version == "latest" else version)):
        if asked is not None and asked != own[what]:
            raise ConfigurationError(
                f"`pipeline_{what}` is {asked!r}, and the pipeline's {what} is {own[what]!r}",
                suggestion=f"give the {what} where workers find the pipeline: Pipeline(…, {what}={asked!r})",
            )
    return pipeline
