"""A client's handle of a run: read it, wait for it, follow it, answer, cancel, retry."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast

from flujo_client.api import approvals, events, explanations, operations, retry
from flujo_client.api.operations import Enqueued
from flujo_client.api.options import AnswerOptions, RetryOptions, SendOptions
from flujo_client.contract.approval import Approval
from flujo_client.contract.envelope import Envelope
from flujo_client.contract.parameters import ContextT, OutputT
from flujo_client.contract.records import BudgetRecord, EventRecord, RunRecord
from flujo_client.contract.results import PipelineResult
from flujo_client.contract.stream import StreamEvent
from flujo_client.contract.trace import TraceNode
from flujo_client.explain.sentence import Sentence
from flujo_client.gateway import requests
from flujo_client.gateway.effects import Operation
from flujo_client.streams.follow import reading_stream

if TYPE_CHECKING:
    from flujo_client.api.client import AsyncFlujoClient, FlujoClient

ClientT = TypeVar("ClientT", bound="FlujoClient | AsyncFlujoClient")
P = ParamSpec("P")
T_co = TypeVar("T_co", covariant=True)

CANCEL_PATIENCE_S = 30.0


class _Method(Protocol[P, T_co]):
    def __get__(self, face: Any, kind: Any = None, /) -> Callable[P, Coroutine[Any, Any, T_co]]: ...


def awaited(method: Callable[Concatenate[Any, P], T_co]) -> _Method[P, T_co]:
    """Return a method of the async face that does what one of the sync face does: the async client returns what is awaited here."""

    @wraps(method)
    async def act(self: Any, *args: P.args, **options: P.kwargs) -> Any:
        answer: Any = method(self, *args, **options)
        return await answer

    return cast("_Method[P, T_co]", act)


class _Handle(Generic[ClientT, OutputT, ContextT]):
    """The common part of both handles: what needs no service."""

    def __init__(self, client: ClientT, enqueued: Enqueued) -> None:
        self._client, self._enqueued = client, enqueued
        self.id, self.is_new = enqueued.run_id, enqueued.is_new

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    @property
    def unpublished(self) -> Sequence[Envelope]:
        """Return the messages that wait for the commit of your own transaction."""
        return self._enqueued.unpublished

    def event_token(self, name: str, *, expires_s: float | None = None) -> str:
        """Return a token for a webhook's address, `POST …/events/<token>` of the page, which sends this event with its JSON body as the value.

        Args:
            name: the event's name.
            expires_s: seconds for which the token is valid; as long as the run takes events when None.

        Raises:
            ConfigurationError: `signing_keys` is not set.
            EventError: the name or `expires_s` is invalid (`INVALID_EVENT`).
        """
        return events.event_token(self._client.settings, self.id, name, expires_s)

    def _read_result(self, timeout: float | None) -> Operation[PipelineResult[OutputT, ContextT]]:
        first_look_s = operations.OWN_SERVICES_LOOK_S if self._client.has_started_services else operations.FIRST_LOOK_S
        settings = self._client.settings
        run = yield from operations.wait_for(settings, self.id, timeout, first_look_s=first_look_s)
        return (yield from operations.result_of(settings, run))


class RunHandle(_Handle["FlujoClient", OutputT, ContextT]):
    """Wait for a run, read it, and control it.

    Attributes:
        id: the run's id.
        is_new: False when enqueue found the run under its idempotency key.
    """

    def publish(self) -> None:
        """Publish a run that was enqueued inside your own transaction, now that you have committed it."""
        return self._client.perform(operations.publish(self.unpublished))

    def status(self) -> str:
        """Read the run's status: queued, running, paused (it waits for a person or an event), parked, succeeded, failed, cancelled or expired."""
        return self._client.perform(operations.status_of(self.id))

    def record(self) -> RunRecord:
        """Read the run's row."""
        return self._client.perform(operations.record_of(self.id))

    def explain(self) -> Sentence:
        """Say in one sentence where the run stopped or what it waits for, why, and what moves it; raises RunNotFound."""
        return self._client.perform(explanations.explain_run(self._client.settings, self.id))

    def result(self, timeout: float | None = None, *, check: bool = True) -> PipelineResult[OutputT, ContextT]:
        """Wait for the run's end and read its result, however it ended; its `output` raises what the run failed with.

        After 5 s, or almost at once if this client has started the embedded services, it logs a warning that says what holds the run, such
        as a missing worker.

        Args:
            timeout: seconds to wait.
            check: with False, `output` is None for a run that did not succeed.

        Raises:
            WaitTimedOut: it has not ended within `timeout` seconds; it continues.
        """
        result = self._client.perform(self._read_result(timeout))
        return result if check else result.unchecked()

    def children(self, limit: int = 1000) -> list[RunRecord]:
        """List the run's child runs, newest first, without theirs."""
        return self._client.list_runs(parent=self.id, limit=limit)

    def events(self, after: str | None = None, limit: int = 1000) -> list[EventRecord]:
        """Read the run's events so far, after an event's `cursor`, and at most so many.

        Raises:
            ClientError: `after` is not the cursor of an event.
        """
        return self._client.ask(requests.events(self.id, after=after, limit=limit))

    def follow(self, after: str | None = None) -> Generator[EventRecord]:
        """Yield the run's events as they happen, each once, until the run has ended.

        Args:
            after: the `cursor` of the last event that was seen, to continue from there.

        Raises:
            RunNotFound: there is no such run.
            ClientError: `after` is not the cursor of an event.
        """
        page: list[EventRecord]
        while page := self._client.perform(operations.next_events(self.id, after)):
            yield from page
            after = page[-1].cursor

    def stream(self, after: str | None = None) -> Generator[StreamEvent]:
        """Yield what the run's steps do and say, as it comes, in order and each event once; the last one is the `end`.

        It waits for Redis and Postgres while they are away. Entries that were trimmed or flushed are a `gap`, and a `snapshot` of what is
        merged follows. `withdrawn` voids the text of a step.

        Args:
            after: the `cursor` of the last event that was seen, to go on from there.

        Raises:
            RunNotFound: there is no such run.
            ClientError: the run has no stream, or `after` is not a cursor.
            SerializationError: a value cannot be read here, such as for want of a value key.
        """
        page: list[StreamEvent]
        with reading_stream(self._client.settings, self.id, after) as stream:
            while page := self._client.perform(stream.next_page()):
                yield from page

    def budgets(self) -> list[BudgetRecord]:
        """Read the budgets of the run's tree, its steps and its tenant that attempts have used."""
        return self._client.ask(requests.budgets(self.id))

    def trace(self) -> TraceNode:
        """Read the run's trace as a tree."""
        return self._client.perform(operations.trace_of(self._client.settings, self.id))

    def approvals(self) -> list[Approval]:
        """List the questions to people that are open in the run and its child runs."""
        return self._client.perform(approvals.approvals_of(self._client.settings, self.id))

    def questions(self) -> list[Approval]:
        """List all questions, including closed ones, in the order they were asked."""
        return self._client.ask(requests.questions(self.id))

    def resume(self, value: Any, **options: Unpack[AnswerOptions]) -> Approval:
        """Answer the open question of the run or its child runs, and return when the answer is recorded.

        Args:
            value: the answer. It is checked against the question's JSON Schema if `jsonschema-rs` is installed here, and against the
                step's type in the worker, which asks again if it does not fit.
            options: the options of `AnswerOptions`.

        Returns:
            the question that was answered.

        Raises:
            ResumeError: no such question is open (`NOT_PAUSED`, `ALREADY_ANSWERED`, `QUESTION_EXPIRED`, `RUN_ENDED`, `UNKNOWN_QUESTION`,
                `SEVERAL_QUESTIONS`), or the answer does not fit (`ANSWER_REFUSED`).
            SerializationError: the answer cannot be serialized.
        """
        return self._client.perform(approvals.resume(self._client.settings, self.id, value, options))

    def send(self, name: str, value: Any = None, **options: Unpack[SendOptions]) -> str:
        """Send an event to the run, and return its id once it is recorded. A step `WaitForEvent` continues with the value within a second.

        It may be sent before the step begins: it waits for it. Of several events of one name each is taken once, in the order in which they came.

        Args:
            name: the event's name, as `WaitForEvent(event=…)` has it in this run or in a child run.
            value: its value. If a step already waits for it, it is checked against its JSON Schema where `jsonschema-rs` is installed; a worker
                checks it in any case, and leaves the step waiting if it does not fit.
            options: those of `SendOptions`.

        Raises:
            EventError: the run has ended (`RUN_ENDED`), no step of its plan waits for this event (`UNKNOWN_EVENT`), the value does not fit
                (`EVENT_REFUSED`), the id was used with another value (`EVENT_CONFLICT`), name or id are empty or too long (`INVALID_EVENT`),
                or too many events wait for a step (`EVENT_LIMIT`).
            SerializationError: the value cannot be serialized, or is too large.
        """
        return self._client.perform(events.send(self._client.settings, self.id, name, value, options))

    def cancel(
        self, *, reason: str | None = None, actor: str | None = None, timeout: float = CANCEL_PATIENCE_S
    ) -> bool:
        """Cancel the run, and wait until a worker acknowledges it. Once the request is committed, nothing more is claimed or merged.

        Returns:
            True if the run ended as cancelled, False if it had already ended otherwise.

        Raises:
            WaitTimedOut: no worker has acknowledged it within `timeout` seconds. The cancel takes effect in any case.
        """
        return self._client.perform(
            operations.cancel(self._client.settings, self.id, actor=actor, reason=reason, timeout=timeout)
        )

    def retry(self, from_step: str | None = None, *, again: bool = False, **options: Unpack[RetryOptions]) -> RunHandle:
        """Start a new run at a step, with the input and context that the step had in this run.

        The new run takes over the outputs of earlier steps, and its spending starts at zero; its tenant's budgets apply. Options default to
        this run's, except the idempotency key.

        Args:
            from_step: the name of a top-level step that the run reached; the one that failed when None.
            again: retry the run although it was retried before, which repeats the effects of its steps once more.
            options: those of `RetryOptions`.

        Raises:
            RetryError: the run is live (`RUN_IS_LIVE`), was retried before (`ALREADY_RETRIED`) or is a child run (`CHILD_RUN`), or cannot start there, and where it can:
                `UNKNOWN_STEP`, `STEP_NOT_BEGUN`, `NO_STEP_FAILED`, `CONTEXT_NOT_KEPT`.
            IdempotencyConflict: the key is in use for different work.
        """
        verb = retry.retry(self._client.settings, self.id, from_step, options, again=again)
        return RunHandle(self._client, self._client.perform(verb))

    def fork(self, from_step: str, **options: Unpack[RetryOptions]) -> RunHandle:
        """Start a new run at a step under the present code. This run may be live, and continues.

        The new run has the plan of the code here, or without the code here the plan that was enqueued last.

        Args:
            from_step: the name of a top-level step that this run reached, and that the present code has.
            options: those of `retry`.

        Raises:
            RetryError: this is a child run (`CHILD_RUN`), or cannot start there: `UNKNOWN_STEP`, `STEP_NOT_BEGUN`, `CONTEXT_NOT_KEPT`.
            PipelineError: the present code is invalid.
            IdempotencyConflict: the key is in use for different work.
        """
        verb = retry.fork(self._client.settings, self.id, from_step, options)
        return RunHandle(self._client, self._client.perform(verb))


class AsyncRunHandle(_Handle["AsyncFlujoClient", OutputT, ContextT]):
    """The async variant of RunHandle, with the same methods: `RunHandle` describes those that are not listed here."""

    publish = awaited(RunHandle.publish)
    status = awaited(RunHandle.status)
    record = awaited(RunHandle.record)
    explain = awaited(RunHandle.explain)
    children = awaited(RunHandle.children)
    events = awaited(RunHandle.events)
    budgets = awaited(RunHandle.budgets)
    trace = awaited(RunHandle.trace)
    approvals = awaited(RunHandle.approvals)
    questions = awaited(RunHandle.questions)
    resume = awaited(RunHandle.resume)
    send = awaited(RunHandle.send)
    cancel = awaited(RunHandle.cancel)

    async def result(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 - the sync client's name
        *,
        check: bool = True,
    ) -> PipelineResult[OutputT, ContextT]:
        """Wait for the run's end and read its result, as `RunHandle.result` does; raises WaitTimedOut."""
        result = await self._client.perform(self._read_result(timeout))
        return result if check else result.unchecked()

    async def follow(self, after: str | None = None) -> AsyncGenerator[EventRecord]:
        """Yield the run's events as they happen, each once, until the run has ended."""
        page: list[EventRecord]
        while page := await self._client.perform(operations.next_events(self.id, after)):
            for event in page:
                yield event
            after = page[-1].cursor

    async def stream(self, after: str | None = None) -> AsyncGenerator[StreamEvent]:
        """Yield what the run's steps do and say, as `RunHandle.stream` does."""
        page: list[StreamEvent]
        with reading_stream(self._client.settings, self.id, after) as stream:
            while page := await self._client.perform(stream.next_page()):
                for event in page:
                    yield event

    async def retry(
        self, from_step: str | None = None, *, again: bool = False, **options: Unpack[RetryOptions]
    ) -> AsyncRunHandle:
        """Begin again at a step in a new run, as `RunHandle.retry` does and with its options."""
        verb = retry.retry(self._client.settings, self.id, from_step, options, again=again)
        return AsyncRunHandle(self._client, await self._client.perform(verb))

    async def fork(self, from_step: str, **options: Unpack[RetryOptions]) -> AsyncRunHandle:
        """Begin again at a step under the present code, as `RunHandle.fork` does."""
        verb = retry.fork(self._client.settings, self.id, from_step, options)
        return AsyncRunHandle(self._client, await self._client.perform(verb))
