"""The client: enqueue pipelines, and ask what became of them.

It needs no worker code, and no run needs it: all that moves a run is in Postgres once `enqueue` returns (M-001, M-010).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

from flujo_client import answering, background, retrying, verbs
from flujo_client.config import ConfigManager
from flujo_client.gateway import requests
from flujo_client.gateway.door import AsyncDoor, Door
from flujo_client.gateway.effects import Ask
from flujo_client.local import open_services

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from pathlib import Path

    from pydantic import BaseModel

    from flujo_client.config import Settings
    from flujo_client.contract.limits import UsageLimits
    from flujo_client.contract.question import Approval
    from flujo_client.contract.results import PipelineResult
    from flujo_client.contract.run import BudgetRecord, EventRecord, RunRecord
    from flujo_client.contract.trace import TraceNode
    from flujo_client.pipeline.compose import Pipeline
    from flujo_client.pipeline.step import Step
    from flujo_client.verbs import Enqueued

CANCEL_PATIENCE_S = 30.0


class FlujoClient:
    """Enqueues pipelines and reads what became of them. A context manager; `close` it otherwise.

    Args:
        settings: where Postgres and Redis are; flujo.toml and the environment when None. With nothing set there either, Postgres
            and Redis are started from wheels, or joined where they run already.
        config: a flujo.toml to read instead of the one that is found.
    """

    def __init__(self, settings: Settings | None = None, *, config: Path | None = None) -> None:
        self.settings, self._services = open_services(settings or ConfigManager(config).settings())
        self._door = Door(self.settings)

    @property
    def is_embedded(self) -> bool:
        """Tell whether Postgres and Redis are embedded ones."""
        return self._services is not None

    def close(self) -> None:
        """Close every connection, and stop the embedded services if this client started them."""
        self._door.close()
        if self._services is not None:
            self._services.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def enqueue(  # noqa: PLR0913 - the seed's signature (M-010)
        self,
        pipeline: str | Pipeline | Step,
        value: Any = None,
        *,
        context: Mapping[str, Any] | BaseModel | None = None,
        idempotency_key: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
        tenant: str = "",
        deadline_s: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        trace_parent: str | None = None,
        limits: UsageLimits | None = None,
        connection: Any = None,
    ) -> RunHandle:
        """Enqueue a pipeline.

        Args:
            pipeline: `"package.module:attribute"`, or the object that stands there.
            value: the first step's input.
            context: the run's context: a mapping, or an instance of the pipeline's context model.
            idempotency_key: the same key again gives the same run, and is refused for other work.
            queue: the Celery queue of steps that name none.
            priority: 0, served first, to 9.
            tenant: whom the run belongs to; idempotency keys are unique within it.
            deadline_s: seconds after which the run expires.
            metadata: kept with the run, for `list_runs`.
            trace_parent: a W3C trace context to carry.
            limits: what the run may spend with all its child runs; the project's `[budgets]` count besides, the smaller of each.
            connection: your own psycopg connection: the run exists if and only if you commit. It is published by a sweep within
                a second, or at once by `RunHandle.publish()` after your commit.

        Raises:
            PipelineError, MissingAgentError: all that is wrong with the pipeline.
            SerializationError, PipelineContextInitializationError: input or context cannot be sent.
            IdempotencyConflict: the key stands for other work.
            ServiceUnreachable: Postgres or Redis does not answer. Nothing was recorded.
        """
        options = {
            "context": context,
            "idempotency_key": idempotency_key,
            "queue": queue,
            "priority": priority,
            "tenant": tenant,
            "deadline_s": deadline_s,
            "metadata": metadata or {},
            "trace_parent": trace_parent,
            "limits": limits,
            "connection": connection,
        }
        return RunHandle(self, self._door.perform(verbs.enqueue(self.settings, pipeline, value, options)))

    def get_run(self, run_id: str) -> RunHandle:
        """Find a run; raises RunNotFound."""
        self._door.perform(verbs.status_of(run_id))
        return RunHandle(self, verbs.Enqueued(run_id, is_new=False))

    def list_runs(  # noqa: PLR0913 - one for each filter
        self,
        *,
        status: str | None = None,
        pipeline: str | None = None,
        tenant: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        prefix: str | None = None,
        parent: str | None = None,
        background: bool | None = None,
        limit: int = 50,
        offset: int = 0,
    ) -> list[RunRecord]:
        """List runs, newest first, child runs among them.

        `metadata` finds runs whose metadata contain it; `prefix` those whose id begins with it; `parent` the child runs of a run,
        or with an empty text all that are no child runs; `background` those of background steps, or with False all others.
        """
        request = requests.runs(
            status=status,
            pipeline=pipeline,
            tenant=tenant,
            metadata=metadata,
            prefix=prefix,
            parent=parent,
            background=background,
            limit=limit,
            offset=offset,
        )
        runs: list[RunRecord] = self.ask(request)
        return runs

    def system_events(self, *, since_s: float = 86_400.0, limit: int = 1000) -> list[EventRecord]:
        """Read what happened to workers outside their attempts in the last `since_s` seconds, the newest first."""
        events: list[EventRecord] = self.ask(requests.system_events(since_s=since_s, limit=limit))
        return events

    def approvals(
        self, *, pipeline: str | None = None, tenant: str | None = None, limit: int = 100, offset: int = 0
    ) -> list[Approval]:
        """List the questions to people that are open, over all runs, the oldest first."""
        filters = {"pipeline": pipeline, "tenant": tenant, "limit": limit, "offset": offset}
        asked: list[Approval] = self._door.perform(answering.open_approvals(self.settings, filters))
        return asked

    def answer(self, token: str, value: Any, *, actor: str | None = None, note: str | None = None) -> Approval:
        """Answer the question that a token of `approvals` is for, as `RunHandle.resume` does.

        Raises:
            ResumeError: the token is forged or over, or as for `RunHandle.resume`.
        """
        answered: Approval = self._door.perform(answering.answer(self.settings, token, value, actor=actor, note=note))
        return answered

    def get_failed_background_tasks(self, parent_run_id: str | None = None, hours_back: float = 24) -> list[RunRecord]:
        """List the runs of background steps that failed in the last hours and that nobody has started again, newest first (U-16).

        Args:
            parent_run_id: only those that this run launched.
            hours_back: how long ago they may have failed.
        """
        runs: list[RunRecord] = self.ask(background.failed(parent_run_id, hours_back))
        return runs

    def resume_background_task(self, task_id: str, new_data: Any = None) -> RunHandle:
        """Go on with a background step's run: answer its open question, or start it again when it did not succeed.

        Started again it is a run of its own, which names this one, with the input and the context that this one was launched with.

        Args:
            task_id: the run's id.
            new_data: the answer; or another input to start again with.

        Returns:
            the run that goes on: the same one after an answer, else the new one.

        Raises:
            RunNotFound: there is no such run.
            ResumeError: it is no background step's, has succeeded, was started again before (`STARTED_AGAIN`), or goes on by itself.
            ConfigurationError: `[background_tasks]` says that nothing is resumed.
        """
        return RunHandle(self, self._door.perform(background.resume(self.settings, task_id, new_data)))

    def retry_failed_background_tasks(self, parent_run_id: str, max_retries: int = 3) -> list[RunHandle]:
        """Start again all failed background steps of a run, as `resume_background_task` does, and give the new runs.

        It waits for nothing: a new run begins 1 s later, its own retry 2 s, that one's 4 s, and so on. Who asks twice starts nothing twice.

        Args:
            parent_run_id: the run that launched them.
            max_retries: how often each may be started again in all.

        Raises:
            RunNotFound: there is no such run.
            ConfigurationError: `[background_tasks]` says that nothing is resumed.
        """
        begun = self._door.perform(background.retry_failed(self.settings, parent_run_id, max_retries))
        return [RunHandle(self, each) for each in begun]

    def cleanup_stale_background_tasks(self, stale_hours: float | None = None) -> list[str]:
        """Fail the queued and running background steps without a sign of life, with the code `BACKGROUND_STALE`, and give their ids.

        One that a worker is at, that waits for a time or a person, or whose work was made, begun or ended since, is left alone.

        Args:
            stale_hours: for how long; the project's `[background_tasks]` setting when None, 24 unless it says otherwise.
        """
        stale: list[str] = self._door.perform(background.fail_stale(self.settings, stale_hours))
        return stale

    def ask(self, request: requests.Request[Any]) -> Any:
        """Put one of the gateway's requests."""
        return self._door.perform(_asking(request))

    def perform(self, verb: verbs.Doing) -> Any:
        """Perform a verb of `flujo_client.verbs`."""
        return self._door.perform(verb)


class RunHandle:
    """One run, seen from the client.

    Attributes:
        id: the run's id.
        is_new: False when enqueue found the run under its idempotency key.
    """

    def __init__(self, client: FlujoClient, enqueued: Enqueued) -> None:
        self._client, self._enqueued = client, enqueued
        self.id, self.is_new = enqueued.run_id, enqueued.is_new

    def __repr__(self) -> str:
        return f"RunHandle({self.id!r})"

    def publish(self) -> None:
        """Publish a run that was enqueued inside your own transaction, now that you have committed it."""
        self._client.perform(verbs.publish(self._enqueued.unpublished))

    def status(self) -> str:
        """Read the run's status: queued, running, paused (it waits for a person), parked, succeeded, failed, cancelled or expired."""
        status: str = self._client.perform(verbs.status_of(self.id))
        return status

    def record(self) -> RunRecord:
        """Read the run's row."""
        record: RunRecord = self._client.perform(verbs.record_of(self.id))
        return record

    def result(self, timeout: float | None = None) -> PipelineResult:
        """Wait for the run's end and read its result; `raise_for_status()` on it turns a failure into an exception.

        Raises:
            WaitTimedOut: it has not ended within `timeout` seconds; it goes on.
        """
        result: PipelineResult = self._client.perform(verbs.result_of(self._client.settings, self.id, timeout))
        return result

    def children(self, limit: int = 1000) -> list[RunRecord]:
        """List the run's child runs, newest first; theirs are not among them."""
        return self._client.list_runs(parent=self.id, limit=limit)

    def events(self, after: str | None = None, limit: int = 1000) -> list[EventRecord]:
        """Read what is known of the run's story, after an event's `cursor`, and at most so many events.

        Raises:
            ClientError: that is no event's cursor.
        """
        events: list[EventRecord] = self._client.ask(requests.events(self.id, after=after, limit=limit))
        return events

    def follow(self, after: str | None = None) -> Iterator[EventRecord]:
        """Tell the run's story as it happens, each event once, until the run has ended.

        Args:
            after: the `cursor` of the last event that was seen: who was cut off goes on from there.

        Raises:
            RunNotFound: there is no such run.
            ClientError: that is no event's cursor.
        """
        page: list[EventRecord]
        while page := self._client.perform(verbs.more_of_the_story(self.id, after)):
            yield from page
            after = page[-1].cursor

    def budgets(self) -> list[BudgetRecord]:
        """Read the budgets that the run stands under: its tree's, its steps' and its tenant's, each once it was asked for something."""
        found: list[BudgetRecord] = self._client.ask(requests.budgets(self.id))
        return found

    def trace(self) -> TraceNode:
        """Read the run's trace as a tree."""
        trace: TraceNode = self._client.perform(verbs.trace_of(self._client.settings, self.id))
        return trace

    def approvals(self) -> list[Approval]:
        """List the questions to people that are open in the run and its child runs."""
        asked: list[Approval] = self._client.perform(answering.approvals_of(self._client.settings, self.id))
        return asked

    def questions(self) -> list[Approval]:
        """List them all, those too that are closed, in the order they were asked."""
        asked: list[Approval] = self._client.ask(requests.questions(self.id))
        return asked

    def resume(
        self,
        value: Any,
        *,
        step: str | None = None,
        address: str | None = None,
        actor: str | None = None,
        note: str | None = None,
    ) -> Approval:
        """Answer the open question of the run or its child runs. It returns when the answer is recorded; a worker goes on with it (M-452, U-37).

        Args:
            value: the answer. It is checked by the question's JSON Schema here where `jsonschema-rs` is installed, and by the step's
                own type in the worker, which asks again if it does not fit.
            step: which question, where several are open: the name of its step.
            address: the same, by the scope it stands in.
            actor: who answers; kept with the answer.
            note: why; kept with the answer.

        Returns:
            the question that was answered.

        Raises:
            ResumeError: no such question is open, and why: `NOT_PAUSED`, `ALREADY_ANSWERED` (by whom and when), `QUESTION_EXPIRED`,
                `RUN_ENDED`, `UNKNOWN_QUESTION`, `SEVERAL_QUESTIONS`; or the answer does not fit: `ANSWER_REFUSED`.
            SerializationError: the answer cannot travel.
        """
        verb = answering.resume(
            self._client.settings, self.id, value, step=step, address=address, actor=actor, note=note
        )
        answered: Approval = self._client.perform(verb)
        return answered

    def cancel(
        self, *, reason: str | None = None, actor: str | None = None, timeout: float = CANCEL_PATIENCE_S
    ) -> bool:
        """Cancel the run. Once the request is committed nothing more is claimed or merged; this waits until it is acknowledged.

        Returns:
            True when the run ended as cancelled, False when it had ended otherwise before.

        Raises:
            WaitTimedOut: no worker has acknowledged within `timeout` seconds. The cancel holds all the same.
        """
        done: bool = self._client.perform(verbs.cancel(self.id, actor=actor, reason=reason, timeout=timeout))
        return done

    def retry(
        self,
        from_step: str | None = None,
        *,
        idempotency_key: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
        deadline_s: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        limits: UsageLimits | None = None,
    ) -> RunHandle:
        """Begin again at a step: fork a new run that names this one, with input and context as they stood when the step was begun.

        What the steps before gave is taken over and costs nothing; the new run's spend starts at nothing, and its tenant's budgets
        hold. What is not given is as this run had it. Its idempotency key is not taken over.

        Args:
            from_step: the name of a top-level step that the run came to; the one it failed at when None.
            idempotency_key: the same key again gives the same fork.
            queue: the queue of steps that name none.
            priority: 0, the first to be served, to 9.
            deadline_s: seconds after which the new run expires; as many as this run had when None.
            metadata: kept with the run, instead of this run's.
            limits: what the new run may spend, instead of this run's limits.

        Raises:
            RetryError: the run is live, `RUN_IS_LIVE`; a child run, `CHILD_RUN`; or there is nothing to begin at, and where there is:
                `UNKNOWN_STEP`, `STEP_NOT_BEGUN`, `NO_STEP_FAILED`, `CONTEXT_NOT_KEPT`.
            IdempotencyConflict: the key stands for other work.
        """
        options = {
            "idempotency_key": idempotency_key,
            "queue": queue,
            "priority": priority,
            "deadline_s": deadline_s,
            "metadata": metadata,
            "limits": limits,
        }
        forked: Enqueued = self._client.perform(retrying.retry(self._client.settings, self.id, from_step, options))
        return RunHandle(self._client, forked)


class AsyncFlujoClient:
    """The same names as FlujoClient, awaited. `async with`, or `await close()`."""

    def __init__(self, settings: Settings | None = None, *, config: Path | None = None) -> None:
        self.settings, self._services = open_services(settings or ConfigManager(config).settings())
        self._door = AsyncDoor(self.settings)

    async def close(self) -> None:
        """Close every connection, and stop the embedded services if this client started them."""
        await self._door.close()
        if self._services is not None:
            await asyncio.to_thread(self._services.stop)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def enqueue(self, pipeline: str | Pipeline | Step, value: Any = None, **options: Any) -> AsyncRunHandle:
        """Enqueue a pipeline, with the options of `FlujoClient.enqueue`; `connection` is a psycopg AsyncConnection."""
        return AsyncRunHandle(self, await self._door.perform(verbs.enqueue(self.settings, pipeline, value, options)))

    async def get_run(self, run_id: str) -> AsyncRunHandle:
        """Find a run; raises RunNotFound."""
        await self._door.perform(verbs.status_of(run_id))
        return AsyncRunHandle(self, verbs.Enqueued(run_id, is_new=False))

    async def list_runs(self, **filters: Any) -> list[RunRecord]:
        """List runs, newest first, with the filters of `FlujoClient.list_runs`."""
        runs: list[RunRecord] = await self.ask(requests.runs(**filters))
        return runs

    async def system_events(self, *, since_s: float = 86_400.0, limit: int = 1000) -> list[EventRecord]:
        """Read what happened to workers in the last `since_s` seconds, the newest first."""
        events: list[EventRecord] = await self.ask(requests.system_events(since_s=since_s, limit=limit))
        return events

    async def approvals(self, **filters: Any) -> list[Approval]:
        """List the questions to people that are open, with the filters of `FlujoClient.approvals`."""
        asked: list[Approval] = await self._door.perform(answering.open_approvals(self.settings, filters))
        return asked

    async def answer(self, token: str, value: Any, *, actor: str | None = None, note: str | None = None) -> Approval:
        """Answer the question that a token is for, as `FlujoClient.answer` does."""
        answered: Approval = await self._door.perform(
            answering.answer(self.settings, token, value, actor=actor, note=note)
        )
        return answered

    async def get_failed_background_tasks(
        self, parent_run_id: str | None = None, hours_back: float = 24
    ) -> list[RunRecord]:
        """List failed background steps, as `FlujoClient.get_failed_background_tasks` does."""
        runs: list[RunRecord] = await self.ask(background.failed(parent_run_id, hours_back))
        return runs

    async def resume_background_task(self, task_id: str, new_data: Any = None) -> AsyncRunHandle:
        """Go on with a background step's run, as `FlujoClient.resume_background_task` does."""
        return AsyncRunHandle(self, await self._door.perform(background.resume(self.settings, task_id, new_data)))

    async def retry_failed_background_tasks(self, parent_run_id: str, max_retries: int = 3) -> list[AsyncRunHandle]:
        """Start failed background steps again, as `FlujoClient.retry_failed_background_tasks` does."""
        begun = await self._door.perform(background.retry_failed(self.settings, parent_run_id, max_retries))
        return [AsyncRunHandle(self, each) for each in begun]

    async def cleanup_stale_background_tasks(self, stale_hours: float | None = None) -> list[str]:
        """Fail background steps without a sign of life, as `FlujoClient.cleanup_stale_background_tasks` does."""
        stale: list[str] = await self._door.perform(background.fail_stale(self.settings, stale_hours))
        return stale

    async def ask(self, request: requests.Request[Any]) -> Any:
        """Put one of the gateway's requests."""
        return await self._door.perform(_asking(request))

    async def perform(self, verb: verbs.Doing) -> Any:
        """Perform a verb of `flujo_client.verbs`."""
        return await self._door.perform(verb)


class AsyncRunHandle:
    """One run; the same names as RunHandle, awaited."""

    def __init__(self, client: AsyncFlujoClient, enqueued: Enqueued) -> None:
        self._client, self._enqueued = client, enqueued
        self.id, self.is_new = enqueued.run_id, enqueued.is_new

    async def publish(self) -> None:
        """Publish a run that was enqueued inside your own transaction, now that you have committed it."""
        await self._client.perform(verbs.publish(self._enqueued.unpublished))

    async def status(self) -> str:
        """Read the run's status."""
        status: str = await self._client.perform(verbs.status_of(self.id))
        return status

    async def record(self) -> RunRecord:
        """Read the run's row."""
        record: RunRecord = await self._client.perform(verbs.record_of(self.id))
        return record

    async def result(self, timeout: float | None = None) -> PipelineResult:  # noqa: ASYNC109 - the sync client's name
        """Wait for the run's end and read its result; raises WaitTimedOut."""
        result: PipelineResult = await self._client.perform(verbs.result_of(self._client.settings, self.id, timeout))
        return result

    async def children(self, limit: int = 1000) -> list[RunRecord]:
        """List the run's child runs, newest first."""
        return await self._client.list_runs(parent=self.id, limit=limit)

    async def events(self, after: str | None = None, limit: int = 1000) -> list[EventRecord]:
        """Read what is known of the run's story, after an event's `cursor`."""
        events: list[EventRecord] = await self._client.ask(requests.events(self.id, after=after, limit=limit))
        return events

    async def follow(self, after: str | None = None) -> AsyncIterator[EventRecord]:
        """Tell the run's story as it happens, each event once, until the run has ended."""
        page: list[EventRecord]
        while page := await self._client.perform(verbs.more_of_the_story(self.id, after)):
            for event in page:
                yield event
            after = page[-1].cursor

    async def budgets(self) -> list[BudgetRecord]:
        """Read the budgets that the run stands under, as far as they have begun."""
        found: list[BudgetRecord] = await self._client.ask(requests.budgets(self.id))
        return found

    async def trace(self) -> TraceNode:
        """Read the run's trace as a tree."""
        trace: TraceNode = await self._client.perform(verbs.trace_of(self._client.settings, self.id))
        return trace

    async def approvals(self) -> list[Approval]:
        """List the questions to people that are open in the run and its child runs."""
        asked: list[Approval] = await self._client.perform(answering.approvals_of(self._client.settings, self.id))
        return asked

    async def questions(self) -> list[Approval]:
        """List them all, those too that are closed."""
        asked: list[Approval] = await self._client.ask(requests.questions(self.id))
        return asked

    async def resume(self, value: Any, **named: Any) -> Approval:
        """Answer the run's open question, as `RunHandle.resume` does and with its options."""
        answered: Approval = await self._client.perform(
            answering.resume(self._client.settings, self.id, value, **named)
        )
        return answered

    async def cancel(
        self,
        *,
        reason: str | None = None,
        actor: str | None = None,
        timeout: float = CANCEL_PATIENCE_S,  # noqa: ASYNC109
    ) -> bool:
        """Cancel the run, as `RunHandle.cancel` does."""
        done: bool = await self._client.perform(verbs.cancel(self.id, actor=actor, reason=reason, timeout=timeout))
        return done

    async def retry(self, from_step: str | None = None, **options: Any) -> AsyncRunHandle:
        """Begin again at a step in a new run, as `RunHandle.retry` does and with its options."""
        verb = retrying.retry(self._client.settings, self.id, from_step, options)
        return AsyncRunHandle(self._client, await self._client.perform(verb))


def _asking(request: requests.Request[Any]) -> verbs.Doing:
    return (yield Ask(request))
