"""The client: enqueue pipelines, and read their results.

It needs no worker code, and runs do not need it: once `enqueue` returns, everything about a run is in Postgres.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, Unpack

from flujo_client.api import approvals, background_runs, bulk, events, explanations, operations, schedules
from flujo_client.api.handle import AsyncRunHandle, RunHandle, awaited
from flujo_client.api.options import (
    ApprovalFilters,
    BulkOptions,
    DeletedRunFilters,
    EnqueueOptions,
    RunFilters,
    SendOptions,
)
from flujo_client.config.manager import ConfigManager, Settings
from flujo_client.contract.approval import Approval
from flujo_client.contract.parameters import ContextT, OutputT
from flujo_client.contract.records import EventRecord, RunRecord, RunSummary
from flujo_client.contract.run_filter import RunFilter
from flujo_client.contract.schedules import ScheduleRecord
from flujo_client.embedded.local import open_services
from flujo_client.errors import ConfigurationError
from flujo_client.explain.sentence import Sentence
from flujo_client.gateway import requests, schedule_requests
from flujo_client.gateway.async_door import AsyncRunner
from flujo_client.gateway.door import SyncRunner
from flujo_client.gateway.effects import Operation, query
from flujo_client.gateway.transaction import publish_on_commit
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.schedule import Schedule
from flujo_client.pipeline.step import Step

if TYPE_CHECKING:
    from celery import Celery

T = TypeVar("T")

PAGE_RUNS = 500
"""As many runs or questions are read at once by `find_runs` and `find_approvals`."""


class _Connected:
    """The common part of both clients: their settings, and the embedded services that they use or started."""

    _runner: ClassVar[Any]

    def __init__(
        self, settings: Settings | None = None, *, config: Path | None = None, app: Celery | None = None
    ) -> None:
        ConfigManager.attached = app = app or ConfigManager.attached
        is_eager = settings is None and app is not None and bool(app.conf.task_always_eager)
        settings = settings or ConfigManager(config).settings()
        self.settings, self._services = (settings, None) if is_eager else open_services(settings)
        self._eager: Any = self._eager_runs() if is_eager else None
        self._door: Any = self._eager or self._runner(self.settings)

    def _eager_runs(self) -> Any:
        """Return what performs the runs of an app whose tasks run eagerly."""
        raise ConfigurationError(
            "this Celery app runs tasks eagerly, which only FlujoClient does with runs",
            suggestion="in tests use flujo_worker.testing.LocalEngine, which needs no services; elsewhere unset task_always_eager",
        )

    @property
    def is_embedded(self) -> bool:
        """Return whether Postgres and Redis are embedded ones."""
        return self._services is not None

    @property
    def has_started_services(self) -> bool:
        """Return whether this client started the embedded services, so that they have no workers."""
        return self._services is not None and self._services.is_owner


class FlujoClient(_Connected):
    """Enqueue pipelines and read their results. Use it as a context manager, or `close` it.

    Args:
        settings: the settings; from flujo.toml and the environment when None. Without configured services, Postgres and Redis are started
            from wheels, or joined if they already run.
        config: a flujo.toml to read instead of the nearest one.
        app: your Celery app, which has what neither flujo.toml nor a `FLUJO_` variable sets: the broker, the key prefix, and the database of its
            Django project. Everything in this process that names no app takes it from this one; not needed where `FlujoWorker(app)` did so.

    Raises:
        SettingsError: a setting is malformed or missing, or your app has services that cannot be used; the message names the line to change.
    """

    _runner = SyncRunner
    _door: SyncRunner

    def _eager_runs(self) -> Any:
        from importlib.metadata import entry_points

        (point,) = entry_points(group="flujo.eager")  # the worker's, which the client does not import
        return point.load()(self)

    def close(self) -> None:
        """Close every connection, and stop the embedded services if this client started them."""
        self._door.close()
        if self._services is not None:
            self._services.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def enqueue(
        self,
        pipeline: str | Pipeline[OutputT, ContextT] | Step[OutputT],
        value: Any = None,
        **options: Unpack[EnqueueOptions],
    ) -> RunHandle[OutputT, ContextT]:
        """Enqueue a pipeline.

        Args:
            pipeline: `"package.module:attribute"`, or the object with that name.
            value: the first step's input.
            options: those of `EnqueueOptions`.

        Raises:
            PipelineError, MissingAgentError: lists everything wrong with the pipeline.
            SerializationError, PipelineContextInitializationError: input or context cannot be sent.
            IdempotencyConflict: the id or the key is in use for different work.
            AdmissionRefused: a limit or a throttle with `on_full="drop"` is reached. Nothing was recorded.
            ServiceUnreachable: Postgres does not answer, or Redis has not answered within the last second. Nothing was recorded.
            ClientError: `connection` cannot be used; the message names what to pass.
        """
        if self._eager is not None:
            run: RunHandle[OutputT, ContextT] = self._eager.enqueue(pipeline, value, options)
        else:
            run = RunHandle(self, self.perform(operations.enqueue(self.settings, pipeline, value, options)))
        publish_on_commit(options.get("connection"), run.publish)
        return run

    def enqueue_many(
        self,
        pipeline: str | Pipeline[OutputT, ContextT] | Step[OutputT],
        values: Iterable[Any],
        **options: Unpack[BulkOptions],
    ) -> list[RunHandle[OutputT, ContextT]]:
        """Enqueue a run for each value, and return the runs in the order of the values.

        Each chunk of up to 1000 runs (or about 8 MiB of inputs and contexts) is one commit and one push. If a value is rejected, the
        chunks before it are recorded, its own and later ones are not. With `connection`, your transaction decides about all of them;
        `publish` them after your commit.

        Args:
            pipeline: as for `enqueue`.
            values: inputs, or a `RunRequest` for a run with its own options, such as an idempotency key.
            options: those of `enqueue`, for all runs.

        Raises:
            FlujoError: as for `enqueue`. The message names the value's index, and how many values are recorded.
        """
        verb = bulk.enqueue_many(self.settings, pipeline, values, options)
        runs: list[RunHandle[OutputT, ContextT]] = [RunHandle(self, each) for each in self.perform(verb)]
        publish_on_commit(options.get("connection"), partial(self.publish, runs))
        return runs

    def publish(self, runs: Iterable[RunHandle]) -> None:
        """Publish runs that were enqueued inside your own transaction, now that you have committed it, as `RunHandle.publish` does for one."""
        self.perform(operations.publish([envelope for run in runs for envelope in run.unpublished]))

    def get_run(self, run_id: str) -> RunHandle:
        """Find a run; raises RunNotFound."""
        if self._eager is not None:
            return self._eager.get_run(run_id)  # type: ignore[no-any-return] # the worker's
        self.perform(operations.status_of(run_id))
        return RunHandle(self, operations.Enqueued(run_id, is_new=False))

    def list_runs(self, *, limit: int = 50, offset: int = 0, **filters: Unpack[RunFilters]) -> list[RunRecord]:
        """List runs, newest first, including child runs.

        Args:
            limit: how many at most.
            offset: how many of the newest to leave out; `find_runs` reads many runs faster.
            filters: conditions that a run must meet, as in `RunFilter`; runs that were retried are not listed as failed, cancelled or expired
                unless `retried=True`.

        Raises:
            ClientError: a status does not exist, `since` is a moment without a time zone, or a condition has another type.
        """
        return self.ask(requests.runs(RunFilter(**filters), limit=limit, offset=offset))

    def find_runs(self, filters: RunFilter, *, before: tuple[datetime, str] | None = None) -> Iterator[RunRecord]:
        """Yield all matching runs, newest first, however many there are. They are read page by page; runs enqueued meanwhile are left out.

        Args:
            filters: the conditions.
            before: the moment and the id of a run: yield only those that follow it.
        """
        while page := self.ask(requests.runs(filters, limit=PAGE_RUNS, before=before)):
            yield from page
            before = (page[-1].created_at, page[-1].id)

    def explain(self, run_ids: Collection[str]) -> dict[str, Sentence]:
        """Say in one sentence where each run stopped or what it waits for, why, and what moves it.

        Any number of runs is read with the same few queries.

        Args:
            run_ids: the runs; those that do not exist are left out of the answer.
        """
        return self.perform(explanations.explain_runs(self.settings, run_ids))

    def list_deleted_runs(self, **filters: Unpack[DeletedRunFilters]) -> list[RunSummary]:
        """List summaries of the runs that retention deleted, if `retention.keep_summaries` is set; those that ended last first.

        Args:
            filters: `status`, `pipeline` (its name), `tenant`, `parent` (a run's id), `limit` (50), `offset`.
        """
        return self.ask(requests.deleted_runs(**filters))

    def system_events(self, *, since_s: float = 86_400.0, limit: int = 1000) -> list[EventRecord]:
        """Read the events of workers outside attempts in the last `since_s` seconds, newest first."""
        return self.ask(requests.system_events(since_s=since_s, limit=limit))

    def approvals(self, **filters: Unpack[ApprovalFilters]) -> list[Approval]:
        """List the open questions to people of all runs, oldest first: by `pipeline` and `tenant`, `limit` (100) from `offset`."""
        return self.perform(approvals.open_approvals(self.settings, filters))

    def find_approvals(
        self, filters: RunFilter, *, after: tuple[datetime, str] | None = None, until: datetime | None = None
    ) -> Iterator[Approval]:
        """Yield the open questions of all matching runs, oldest first, without tokens. They are read page by page.

        Args:
            filters: the conditions; a `step` is the one that asks.
            after: when a question was asked, and its key: yield only those that follow it.
            until: yield only those that were asked by then.
        """
        while page := self.ask(requests.approvals(filters, limit=PAGE_RUNS, after=after, until=until)):
            yield from page
            after = (page[-1].asked_at, page[-1].key)

    def answer(self, token: str, value: Any, *, actor: str | None = None, note: str | None = None) -> Approval:
        """Answer the question that a token of `approvals` is for, as `RunHandle.resume` does.

        Raises:
            ResumeError: the token is forged or over, or as for `RunHandle.resume`.
        """
        return self.perform(approvals.answer(self.settings, token, value, actor=actor, note=note))

    def send_by_token(self, token: str, value: Any = None, **options: Unpack[SendOptions]) -> str:
        """Send the event that a token of `RunHandle.event_token` is for, as `RunHandle.send` does.

        Raises:
            EventError: the token is forged (`BAD_TOKEN`) or over (`TOKEN_EXPIRED`), or as for `RunHandle.send`.
        """
        return self.perform(events.send_by_token(self.settings, token, value, options))

    def get_failed_background_tasks(self, parent_run_id: str | None = None, hours_back: float = 24) -> list[RunRecord]:
        """List the background runs that failed in the last hours and have not been started again, newest first.

        Args:
            parent_run_id: only those that this run launched.
            hours_back: the number of hours.
        """
        return self.ask(background_runs.failed(parent_run_id, hours_back))

    def resume_background_task(self, task_id: str, new_data: Any = None) -> RunHandle:
        """Continue the run of a background step: answer its open question, or start it again if it did not succeed.

        Starting again makes a new run, which names this one, with the input and the context that this one was launched with.

        Args:
            task_id: the run's id.
            new_data: the answer, or another input to start again with.

        Returns:
            the run that continues: the same one after an answer, else the new one.

        Raises:
            RunNotFound: there is no such run.
            ResumeError: it is not a background run, has succeeded, was already started again (`STARTED_AGAIN`), or continues anyway.
            FeatureDisabled: `[background_tasks]` turns resuming off.
        """
        return RunHandle(self, self.perform(background_runs.resume(self.settings, task_id, new_data)))

    def retry_failed_background_tasks(self, parent_run_id: str, max_retries: int = 3) -> list[RunHandle]:
        """Start all failed background steps of a run again, as `resume_background_task` does, and return the new runs.

        It does not wait: a new run begins after 1 s, its retry after 2 s, the next after 4 s, and so on. A second call starts nothing twice.

        Args:
            parent_run_id: the run that launched them.
            max_retries: how often each may be started again in all.

        Raises:
            RunNotFound: there is no such run.
            FeatureDisabled: `[background_tasks]` turns resuming off.
        """
        started = self.perform(background_runs.retry_failed(self.settings, parent_run_id, max_retries))
        return [RunHandle(self, each) for each in started]

    def cleanup_stale_background_tasks(self, stale_hours: float | None = None) -> list[str]:
        """Fail the queued and running background steps without activity, with the code `BACKGROUND_STALE`, and return their ids.

        Steps that a worker performs, or that wait for a time or a person, are not stale.

        Args:
            stale_hours: how long; the project's `[background_tasks]` setting when None, by default 24.
        """
        return self.perform(background_runs.fail_stale(self.settings, stale_hours))

    def add_schedule(self, schedule: Schedule) -> ScheduleRecord:
        """Store a schedule, whose runs workers begin from now on, or replace the one of its name.

        A replaced one stays paused if it is, and keeps its next slot if its timing does not change.

        Raises:
            FlujoError: as for `enqueue`, for the runs of the schedule; or it would never fire.
        """
        return self.perform(schedules.add(self.settings, schedule))

    def schedules(self) -> list[ScheduleRecord]:
        """List the schedules by name; `upcoming` of each returns when it fires next."""
        return self.ask(schedule_requests.schedules())

    def pause_schedule(self, name: str) -> None:
        """Pause a schedule: it does not fire until it is resumed. Raises ClientError if there is none of that name."""
        return self.perform(schedules.pause(name))

    def resume_schedule(self, name: str) -> None:
        """Resume a paused schedule; slots of the pause do not fire. Raises as `pause_schedule` does."""
        return self.perform(schedules.resume(name))

    def remove_schedule(self, name: str) -> None:
        """Delete a schedule; its runs stay. Raises as `pause_schedule` does."""
        return self.perform(schedules.remove(name))

    def run_schedule(self, name: str) -> RunHandle:
        """Enqueue a run of a schedule now, paused or not, under its overlap policy; its slots stay as they are.

        Raises:
            FlujoError: as for `enqueue`; ClientError if there is no such schedule.
        """
        return RunHandle(self, self.perform(schedules.run_now(self.settings, name)))

    def ask(self, request: requests.Request[T]) -> T:
        """Send one of the gateway's requests."""
        return self.perform(query(request))

    def perform(self, operation: Operation[T]) -> T:
        """Perform one of the client's operations."""
        return self._door.perform(operation)


class AsyncFlujoClient(_Connected):
    """The async variant of FlujoClient, with the same methods: `FlujoClient` describes those that are not listed here. `async with`, or `await close()`."""

    _runner = AsyncRunner
    _door: AsyncRunner

    list_runs = awaited(FlujoClient.list_runs)
    explain = awaited(FlujoClient.explain)
    list_deleted_runs = awaited(FlujoClient.list_deleted_runs)
    system_events = awaited(FlujoClient.system_events)
    approvals = awaited(FlujoClient.approvals)
    answer = awaited(FlujoClient.answer)
    send_by_token = awaited(FlujoClient.send_by_token)
    get_failed_background_tasks = awaited(FlujoClient.get_failed_background_tasks)
    cleanup_stale_background_tasks = awaited(FlujoClient.cleanup_stale_background_tasks)
    add_schedule = awaited(FlujoClient.add_schedule)
    schedules = awaited(FlujoClient.schedules)
    pause_schedule = awaited(FlujoClient.pause_schedule)
    resume_schedule = awaited(FlujoClient.resume_schedule)
    remove_schedule = awaited(FlujoClient.remove_schedule)

    async def close(self) -> None:
        """Close every connection, and stop the embedded services if this client started them."""
        await self._door.close()
        if self._services is not None:
            await asyncio.to_thread(self._services.stop)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def enqueue(
        self,
        pipeline: str | Pipeline[OutputT, ContextT] | Step[OutputT],
        value: Any = None,
        **options: Unpack[EnqueueOptions],
    ) -> AsyncRunHandle[OutputT, ContextT]:
        """Enqueue a pipeline, as `FlujoClient.enqueue` does."""
        return AsyncRunHandle(self, await self.perform(operations.enqueue(self.settings, pipeline, value, options)))

    async def enqueue_many(
        self,
        pipeline: str | Pipeline[OutputT, ContextT] | Step[OutputT],
        values: Iterable[Any],
        **options: Unpack[BulkOptions],
    ) -> list[AsyncRunHandle[OutputT, ContextT]]:
        """Enqueue a run for each value, as `FlujoClient.enqueue_many` does; other tasks continue meanwhile."""
        verb = bulk.enqueue_many(self.settings, pipeline, values, options)
        return [AsyncRunHandle(self, each) for each in await self.perform(verb)]

    async def publish(self, runs: Iterable[AsyncRunHandle]) -> None:
        """Publish runs that were enqueued inside your own transaction, now that you have committed it."""
        await self.perform(operations.publish([envelope for run in runs for envelope in run.unpublished]))

    async def get_run(self, run_id: str) -> AsyncRunHandle:
        """Find a run; raises RunNotFound."""
        await self.perform(operations.status_of(run_id))
        return AsyncRunHandle(self, operations.Enqueued(run_id, is_new=False))

    async def find_runs(
        self, filters: RunFilter, *, before: tuple[datetime, str] | None = None
    ) -> AsyncIterator[RunRecord]:
        """Yield all matching runs, newest first, as `FlujoClient.find_runs` does."""
        while page := await self.ask(requests.runs(filters, limit=PAGE_RUNS, before=before)):
            for run in page:
                yield run
            before = (page[-1].created_at, page[-1].id)

    async def find_approvals(
        self, filters: RunFilter, *, after: tuple[datetime, str] | None = None, until: datetime | None = None
    ) -> AsyncIterator[Approval]:
        """Yield the open questions of all matching runs, as `FlujoClient.find_approvals` does."""
        while page := await self.ask(requests.approvals(filters, limit=PAGE_RUNS, after=after, until=until)):
            for approval in page:
                yield approval
            after = (page[-1].asked_at, page[-1].key)

    async def resume_background_task(self, task_id: str, new_data: Any = None) -> AsyncRunHandle:
        """Continue a background step's run, as `FlujoClient.resume_background_task` does."""
        return AsyncRunHandle(self, await self.perform(background_runs.resume(self.settings, task_id, new_data)))

    async def retry_failed_background_tasks(self, parent_run_id: str, max_retries: int = 3) -> list[AsyncRunHandle]:
        """Start failed background steps again, as `FlujoClient.retry_failed_background_tasks` does."""
        started = await self.perform(background_runs.retry_failed(self.settings, parent_run_id, max_retries))
        return [AsyncRunHandle(self, each) for each in started]

    async def run_schedule(self, name: str) -> AsyncRunHandle:
        """Enqueue a run of a schedule now, as `FlujoClient.run_schedule` does."""
        return AsyncRunHandle(self, await self.perform(schedules.run_now(self.settings, name)))

    async def ask(self, request: requests.Request[T]) -> T:
        """Send one of the gateway's requests."""
        return await self.perform(query(request))

    async def perform(self, operation: Operation[T]) -> T:
        """Perform one of the client's operations."""
        return await self._door.perform(operation)
