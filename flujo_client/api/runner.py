"""`Flujo(pipeline).run(...)`: the familiar facade over enqueue and wait, and `TaskClient`'s verbs."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Generic, Self

from flujo_client.api.client import AsyncFlujoClient, FlujoClient
from flujo_client.api.operations import peek_at, result_of
from flujo_client.contract.parameters import ContextT, OutputT
from flujo_client.contract.records import LIVE_RUN
from flujo_client.contract.results import BackgroundLaunched, Failure, Success
from flujo_client.embedded.local import Fleet
from flujo_client.errors import ConfigurationError, ResumeError
from flujo_client.gateway import requests
from flujo_client.pipeline.reference import reference_with_options
from flujo_client.pipeline.submit import build_context

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from types import TracebackType

    from pydantic import BaseModel

    from flujo_client.api.handle import RunHandle
    from flujo_client.api.registry import PipelineRegistry
    from flujo_client.config.manager import Settings
    from flujo_client.contract.approval import Approval
    from flujo_client.contract.checklist import Candidate
    from flujo_client.contract.limits import UsageLimits
    from flujo_client.contract.records import RunRecord
    from flujo_client.contract.results import PipelineResult, StepOutcome, StepResult
    from flujo_client.pipeline.pipeline import Pipeline
    from flujo_client.pipeline.step import Step

STREAM_EVERY_S = 0.05
LOOKING_COSTS = 5
"""A look at a run with thousands of iterations takes a while: a stream waits so many times as long before the next one."""


class Flujo(Generic[OutputT, ContextT]):
    """Runs one pipeline: enqueues it, and waits for its result. Generic in its output and its context, as its pipeline is.

    With embedded services and no worker running, it starts one worker process and stops it in `close`.

    Args:
        pipeline: the pipeline; or None with `registry` and `pipeline_name`.
        context_model: the model of the runs' context, where the pipeline names none.
        initial_context_data: context data that every run starts with.
        resources: what the runs' attempts get instead of the pipeline's own `resources`: `"module:attribute"`, or the object that stands
            there, for workers find both by name.
        hooks: what workers call with what happens to the runs, after the pipeline's own `hooks`: functions at the top of a module, or
            `"module:attribute"`, for workers find them by name.
        registry: where to find the pipeline by name.
        pipeline_name: its name there.
        pipeline_version: its version there, or "latest".
        usage_limits: what each run may spend with all its child runs.
        settings: as for FlujoClient.

    Raises:
        PipelineError: workers could not find the resources, a hook, or the pipeline that is to have them.
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
        usage_limits: UsageLimits | None = None,
        settings: Settings | None = None,
    ) -> None:
        found = pipeline if pipeline is not None else _registered(registry, pipeline_name, pipeline_version)
        has_options = resources is not None or hooks
        self._pipeline = reference_with_options(found, resources=resources, hooks=hooks or ()) if has_options else found
        self._context_model, self._initial = context_model, dict(initial_context_data or {})
        self._limits = usage_limits
        self._client = FlujoClient(settings)
        self._fleet: Fleet | None = None

    async def resume_async(self, paused_result: PipelineResult | str, human_input: Any = None) -> PipelineResult:
        """Go on with a run that this or another process started: wait for its end, or its next question, and give the result.

        Args:
            paused_result: the run's id, or what was read of it before.
            human_input: the answer to the run's open question; without one, the run is only waited for.

        Raises:
            ResumeError: an answer is given and the run has no question open, or it does not fit.
            RunNotFound: there is no such run.
        """
        run_id = paused_result if isinstance(paused_result, str) else paused_result.run_id
        async with AsyncFlujoClient(self._client.settings) as client:
            run = await client.get_run(run_id)
            if human_input is not None:
                await run.resume(human_input)
            self._need_worker()
            return await _until_pause(client, run_id)

    @property
    def client(self) -> FlujoClient:
        """The client this facade enqueues through."""
        return self._client

    @property
    def has_started_worker(self) -> bool:
        """Tell whether this facade runs a worker process of its own."""
        return self._fleet is not None

    def close(self) -> None:
        """Stop what this facade started."""
        if self._fleet is not None:
            self._fleet.stop()
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def run(
        self, value: Any = None, *, initial_context_data: Mapping[str, Any] | None = None, timeout: float | None = None
    ) -> PipelineResult[OutputT, ContextT]:
        """Enqueue, wait for the end or for a question to a person, and give the result, whatever it is.

        With a question open its `run_status` is `paused` and its `signals` tell the question; `resume_async` answers and continues.

        Args:
            value: the first step's input.
            initial_context_data: context data of this run, over that of the facade.
            timeout: seconds to wait; raises WaitTimedOut after them.
        """
        run = self.start(value, initial_context_data=initial_context_data)
        result: PipelineResult[OutputT, ContextT] = self._client.perform(
            result_of(self._client.settings, run.id, timeout, through_pauses=False)
        )
        return result

    def start(
        self, value: Any = None, *, initial_context_data: Mapping[str, Any] | None = None
    ) -> RunHandle[OutputT, ContextT]:
        """Enqueue and do not wait."""
        context: Any = {**self._initial, **(initial_context_data or {})} or None
        if self._context_model is not None:
            context = build_context(context, self._context_model)
        run = self._client.enqueue(self._pipeline, value, context=context, limits=self._limits)
        self._need_worker()
        return run

    async def run_async(
        self, value: Any = None, *, initial_context_data: Mapping[str, Any] | None = None
    ) -> PipelineResult:
        """`run`, awaited."""
        run = self.start(value, initial_context_data=initial_context_data)
        async with AsyncFlujoClient(self._client.settings) as client:
            return await _until_pause(client, run.id)

    async def run_stream(
        self, value: Any = None, *, initial_context_data: Mapping[str, Any] | None = None
    ) -> AsyncIterator[StepOutcome | PipelineResult]:
        """Yield each step's outcome as it ends, how the run turned (`PipelineResult.signals`) and its result last.

        A container is one step, with its children inside. The stream ends at a question to a person, with a `Paused` for each.
        """
        run, seen = self.start(value, initial_context_data=initial_context_data), 0
        async with AsyncFlujoClient(self._client.settings) as client:
            while True:
                began = time.monotonic()
                result: PipelineResult = await client.perform(peek_at(client.settings, run.id))
                for step in result.step_history[seen:]:
                    yield _outcome(step)
                seen = len(result.step_history)
                if result.run_status not in LIVE_RUN or result.run_status == "paused":
                    break
                await asyncio.sleep(max(STREAM_EVERY_S, LOOKING_COSTS * (time.monotonic() - began)))
            for signal in result.signals:
                yield signal
            yield result

    def _need_worker(self) -> None:
        """Embedded services without a worker would wait forever; real ones have workers of their own."""
        if not self._client.is_embedded or self._fleet is not None:
            return
        if not any(worker.is_live for worker in self._client.ask(requests.workers())):
            self._fleet = Fleet(self._client.settings)
            self._fleet.start()


async def run_agentic_loop_pipeline(
    pipeline: str | Pipeline | Step,
    initial_prompt: Any = None,
    *,
    resume_from: PipelineResult | str | None = None,
    human_input: Any = None,
    **options: Any,
) -> PipelineResult:
    """Run an agentic loop's pipeline to its end, or to its next question to a person.

    Args:
        pipeline: as `make_agentic_loop_pipeline` makes it, where workers find it; or its reference.
        initial_prompt: the goal.
        resume_from: a run that waits for a person, or its id: it continues, and `initial_prompt` does not count.
        human_input: the answer to its question.
        options: further ones of `Flujo`.

    Raises:
        ResumeError: the run has no question open, or the answer does not fit; or no run is named that it is for.
    """
    if resume_from is None and human_input is not None:
        raise ResumeError("human_input needs the run that asked for it", suggestion="pass that run as `resume_from`")
    runner = Flujo(pipeline, **options)
    try:
        if resume_from is not None:
            return await runner.resume_async(resume_from, human_input)
        return await runner.run_async(initial_prompt)
    finally:
        await asyncio.to_thread(runner.close)


class TaskClient:
    """The original's verbs for other people's runs, as thin names over AsyncFlujoClient."""

    def __init__(self, settings: Settings | None = None) -> None:
        self._client = AsyncFlujoClient(settings)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection."""
        await self._client.close()

    async def list_tasks(
        self,
        status: str | None = None,
        pipeline_name: str | None = None,
        limit: int = 50,
        offset: int = 0,
        metadata_filter: Mapping[str, Any] | None = None,
    ) -> list[RunRecord]:
        """List runs, newest first."""
        return await self._client.list_runs(
            status=status, pipeline=pipeline_name, limit=limit, offset=offset, metadata=metadata_filter
        )

    async def get_task(self, run_id: str) -> PipelineResult:
        """Read what there is of a run; raises RunNotFound."""
        result: PipelineResult = await self._client.perform(peek_at(self._client.settings, run_id))
        return result

    async def resume_task(self, run_id: str, value: Any, **named: Any) -> Approval:
        """Answer a run's open question, with the options of `RunHandle.resume`. It is enqueued: a worker continues."""
        return await (await self._client.get_run(run_id)).resume(value, **named)

    async def cancel_task(self, run_id: str, *, reason: str | None = None) -> bool:
        """Cancel a run."""
        return await (await self._client.get_run(run_id)).cancel(reason=reason)


async def run_default_pipeline(pipeline: str | Pipeline | Step, task: Any, **options: Any) -> Candidate:
    """Run a default pipeline for a task, and give its last solution, whether it has passed or not.

    Args:
        pipeline: as `make_default_pipeline` makes it, where workers find it; or its reference.
        task: what is to be done.
        options: further ones of `Flujo`.

    Raises:
        RunEnded: an agent failed for good, or the run was ended from elsewhere.
        PausedException: an agent asks a person; `Flujo(…).resume_async` answers, and continues.
    """
    runner = Flujo(pipeline, **options)
    try:
        result = await runner.run_async(task)
    finally:
        await asyncio.to_thread(runner.close)
    found: Candidate = result.raise_for_status().output
    return found


def _outcome(step: StepResult) -> StepOutcome:
    if step.metadata_.get("is_background"):
        return BackgroundLaunched(task_id=step.metadata_["child_run"], step_name=step.name)
    return Success(step_result=step) if step.success else Failure(feedback=step.feedback, step_result=step)


async def _until_pause(client: AsyncFlujoClient, run_id: str) -> PipelineResult:
    result: PipelineResult = await client.perform(result_of(client.settings, run_id, None, through_pauses=False))
    return result


def _registered(registry: PipelineRegistry | None, name: str | None, version: str) -> Pipeline:
    if registry is None or name is None:
        raise ConfigurationError("Flujo needs a pipeline, or a registry and a pipeline_name")
    pipeline = registry.get_latest(name) if version == "latest" else registry.get(name, version)
    if pipeline is None:
        raise ConfigurationError(f"no pipeline '{name}' {version} is registered")
    return pipeline
