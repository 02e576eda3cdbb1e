"""`FlujoDurability`: an agent's calls are units on record, by pydantic-ai's public interface for durability engines.

Inside an attempt each model request, tool call and durable operation is a unit; outside it is transparent. It must not decide what is recorded
how: the journal does. In: operations of the library. Out: their answers, as they are stored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from pydantic import JsonValue, TypeAdapter, ValidationError
from pydantic_ai import Agent
from pydantic_ai.capabilities.abstract import CapabilityOrdering, WrapRunHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityCodec,
    DurabilityEngineSpec,
    DurableOperationId,
    EventStreamHandlerId,
    JournalCallableOperationBackend,
    ModelCancelSuspendedResponseId,
    ModelCompactMessagesId,
    ModelRequestId,
    RoleBasedOperationConfig,
    ToolsetCallToolId,
    ToolsetValidateToolArgumentsId,
    conversation_id_from_run_id,
)
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model, ModelResolutionContext
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, RunContext
from typing_extensions import override

from flujo_client.contract.outcome import Usage
from flujo_client.errors import ConfigurationError, NonRetryableError, PausedException
from flujo_client.pipeline.durable import DECLARE, KEY, declared, looks_like_effect
from flujo_worker.agents.asked import Fingerprint, asked, prompt_of
from flujo_worker.agents.durable_library import (
    ExternalEventError,
    ExternalEventWaiter,
    RequestInput,
    external_event_scope,
    record_durable_unit,
    replay_scope,
)
from flujo_worker.agents.live_stream import live, taking
from flujo_worker.agents.models import asked_model
from flujo_worker.agents.previews import AGENT_TOOL
from flujo_worker.agents.pricing import usage_of
from flujo_worker.agents.requests import PacedRequest, expected_cost
from flujo_worker.agents.tool_questions import RESULT, answered, ask_with, effect_of, outcome_of, put_off
from flujo_worker.domain.asking import Ask
from flujo_worker.domain.budget import Amount
from flujo_worker.durable.call import UnitCall
from flujo_worker.durable.context_writes import is_with_patch
from flujo_worker.durable.journal import Journal
from flujo_worker.runtime.attempt_run import current_run, current_work
from flujo_worker.runtime.people import GivenAnswer, answer_found, pausing

if TYPE_CHECKING:
    from pydantic_ai.capabilities.abstract import WrapToolExecuteHandler
    from pydantic_ai.durable_exec._utils import DurableModel
    from pydantic_ai.messages import ToolCallPart
    from pydantic_ai.models import ModelRequestContext
    from pydantic_ai.run import AgentRunResult
    from pydantic_ai.tools import ToolDefinition

    from flujo_worker.agents.batches import InBatches

MODEL: Final = "flujo"
"""The name of the model that an attempt asks: we pass it as an instance, which the agent may not know."""


class Codec(DurabilityCodec):
    """Leaves values to our serialisation, which keeps what JSON does not: NaN, large integers, bytes."""

    def __init__(self) -> None:
        self._adapters: dict[Any, TypeAdapter[Any]] = {}

    @override
    def dump(self, tp: Any, value: Any) -> Any:
        if tp not in self._adapters:
            self._adapters[tp] = TypeAdapter(tp)
        return self._adapters[tp].dump_python(value)

    @override
    def load(self, tp: Any, payload: Any) -> Any:
        try:
            return JSON_CODEC.load(tp, payload)
        except ValidationError as error:
            what = f"a recorded answer is no {getattr(tp, '__name__', tp)} to this code: {error.errors()[0]['msg']}"
            way_out = "other code recorded it: deploy that again, or begin anew with `flujo retry`"
            raise NonRetryableError(what, suggestion=way_out, code="UNIT_RECORD") from None


class Backend(JournalCallableOperationBackend[Any]):
    """Executes units of one agent."""

    def __init__(self, agent_name: str, default_model_id: str | None, fingerprint: Fingerprint) -> None:
        config = RoleBasedOperationConfig[Any](model={}, event={}, capability={}, tool={}, resolve_tool=_config_of)
        super().__init__(agent_name=agent_name, default_model_id=default_model_id, config=config)
        self._fingerprint = fingerprint

    @override
    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[Any, ...],
        config: Any,
    ) -> object:
        """Answer a unit from record, or ask and record it. Events are told as they come, and are none.

        Neither is the end of a provider's job, which the library asks for on any way out: where the attempt goes on later, it wants the job.
        """
        journal = current_journal()
        if isinstance(operation_id, ModelCancelSuspendedResponseId):
            return None if journal is not None and journal.is_over else await body()
        if journal is None or isinstance(operation_id, EventStreamHandlerId):
            return await body()
        is_tool = isinstance(operation_id, ToolsetCallToolId)
        effect = effect_of(cache_key[0], _metadata(cache_key[3])) if is_tool else None
        what = asked(
            operation_id,
            cache_key,
            fingerprint=self._fingerprint,
            is_effect=effect is not None,
            digests=journal.digests,
        )
        writes = journal.context_writes
        if is_tool and writes.applies(cache_key[2].deps):
            body = writes.on_a_copy(cache_key[2], body)
        call = UnitCall(name, what.data, effect, parts=what.parts)
        if effect == "once":
            call = replace(call, in_doubt=partial(outcome_of, cache_key[0], cache_key[1]))
        if isinstance(operation_id, ModelRequestId | ModelCompactMessagesId):
            request = _request(operation_id, cache_key)
            model = f"{request[0].system}:{operation_id.model_name}"
            usage, expected = partial(_usage_of, operation_id, model), partial(expected_cost, *request)
            call = replace(call, is_paid=True, model=model, usage=usage, expected=expected)
            if isinstance(operation_id, ModelRequestId) and (pace := journal.run.pace) is not None:
                paced = PacedRequest(pace, *request)
                sleep = partial(journal.wait, why="the model's rate limit allows no request before")
                call = replace(call, begin=lambda _: paced.begin(sleep))
                body = partial(paced.send, body, _tokens_of)
            if isinstance(operation_id, ModelRequestId) and (batched := _batched(journal, cache_key)) is not None:
                cost = partial(_not_paid, batched, expected)
                call = replace(call, begin=partial(batched.begin, call.begin), expected=cost)
                body = partial(batched.send, partial(Codec().dump, ModelResponse), body)
        answer, is_asked = await journal.perform(call, body)
        if is_with_patch(answer):
            answer = await writes.merge(answer)
        record_durable_unit(executed=is_asked)
        return answer


def current_journal() -> Journal | None:
    """Return the units of the running attempt; None outside of one."""
    run = current_run()
    journal = None if run is None else run.journal
    return journal if isinstance(journal, Journal) else None


def _request(operation: ModelRequestId | ModelCompactMessagesId, inputs: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    """Return which model is asked, what, and with which settings."""
    if isinstance(operation, ModelRequestId):
        _, messages, settings, _, ctx = inputs
        return ctx.model, messages, settings
    _, context, _, ctx = inputs
    return ctx.model, context.messages, None


def _batched(journal: Journal, inputs: tuple[Any, ...]) -> InBatches | None:
    """Return how a request is asked in a batch, if its step does so."""
    _, messages, settings, parameters, ctx = inputs
    work = journal.run.work
    if work is None or "batch" not in (work.step.processing or {}) or not hasattr(ctx.model, "batch_max_requests"):
        return None  # older releases of the library have no batches
    from flujo_worker.agents.batches import in_batches

    return in_batches(journal, ctx.model, messages, settings, parameters)


def _not_paid(batched: InBatches, expected: Callable[[], Amount]) -> Amount:
    """Return what a request may cost from now on: one that a batch has answered is paid for."""
    return expected() if batched.response is None else Amount()


def _usage_of(operation: ModelRequestId | ModelCompactMessagesId, model: str, payload: Any) -> Usage:
    """Return what a request has cost."""
    from pydantic_ai.usage import RunUsage

    given = payload.get("response", payload)  # of a stream it is beside the events
    response: ModelResponse = JSON_CODEC.load(ModelResponse, given)
    if response.usage.cost is None and response.model_name is not None:
        with suppress(LookupError):  # no list of prices has it; the library looks only after the unit
            response.usage.cost = response.cost().total_price
    spent = RunUsage(requests=1)
    spent.incr(response.usage)
    return replace(usage_of(spent, response, operation.model_name), model=model)


def _tokens_of(payload: Any) -> int:
    """Return the tokens of an answer: of limits, which do not need its cost."""
    used = payload["usage"]
    return int(used["input_tokens"] + used["output_tokens"])


def _metadata(tool: Any) -> Mapping[str, Any]:
    return getattr(getattr(tool, "tool_def", tool), "metadata", None) or {}


def _config_of(operation: DurableOperationId, tool: Any, _: str) -> Any:
    """Return False where a tool's call, or the check of its arguments, is no unit: an agent as a tool is none, only its calls are."""
    if tool is None:
        return {}
    metadata = _metadata(tool)
    is_none = metadata.get(KEY) is False or AGENT_TOOL in metadata
    return False if is_none or isinstance(operation, ToolsetValidateToolArgumentsId) else {}


class Waiter(ExternalEventWaiter):
    """A wait is a question to a person: the attempt ends, and the answer makes it go on here."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    @override
    async def wait(
        self, name: str, *, ask: Callable[[str], Awaitable[JsonValue]], timeout: timedelta | None
    ) -> JsonValue:
        """Return the event; `ask` is called with a token that answers the question, again only if that one was never asked."""
        expires_s = None if timeout is None else timeout.total_seconds()
        wanted = Ask(
            self._journal.names.ask_id(name.encode()), name, name, f"{name} waits for an answer.", "", RESULT, expires_s
        )
        found = await answer_found(wanted, lambda answer: answer)
        if isinstance(found, GivenAnswer):
            if found.has_expired:
                raise ExternalEventError(f"No answer arrived within {timeout}.")
            return found.value  # type: ignore[no-any-return]
        token = self._journal.token()
        mark = blake2b(token.encode(), digest_size=16).hexdigest()  # who reads units may not answer
        told, said = await self._tell(name, "", ask, token, mark)
        if said is None and told != mark:
            _, said = await self._tell(name, mark, ask, token, mark)
        if said is None:
            raise pausing([found], PausedException(found.title))
        return said

    async def _tell(
        self, name: str, about: str, ask: Callable[[str], Awaitable[JsonValue]], token: str, mark: str
    ) -> tuple[str, JsonValue]:
        async def tell() -> list[JsonValue]:
            return [mark, await ask(token)]

        (told, said), _ = await self._journal.perform(UnitCall(f"{name}.ask", about.encode()), tell)
        return told, said


class FlujoDurability(BaseDurabilityCapability[Any]):
    """Makes an agent durable in attempts of steps: after a crash or an outage it goes on at the call that was in flight.

    Args:
        models: models that a run may be asked with beside the agent's own, by names.
        event_stream_handler: gets the events of a request as they come.
        name: of the agent, for its units; its own if None.
        fingerprint: what a recorded model request must have in common with what is asked: its `conversation`, or `strict`ly all.
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="Flujo",
        durable_unit_noun="unit",
        durable_container_noun="attempt",
        codec=Codec(),
        toolset_lifecycles={"function": "enter-always", "mcp": "enter-in-durable-unit", "dynamic": "enter-never"},
        tool_config_key=KEY,
        unsupported_runtime_toolset_kinds=frozenset(
            {"function", "mcp", "dynamic"}
        ),  # they would be no units, in silence
    )

    def __init__(
        self,
        *,
        models: Mapping[str, Model[Any]] | None = None,
        event_stream_handler: Any = None,
        name: str | None = None,
        fingerprint: Fingerprint = "conversation",
    ) -> None:
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)
        self._fingerprint: Fingerprint = fingerprint

    @property
    @override
    def in_durable_context(self) -> bool:
        """Return whether this is inside an attempt."""
        return current_journal() is not None

    @override
    def get_durable_operation_backend(self) -> Backend:
        """Return what executes this agent's units."""
        return Backend(self.name, self.default_model_id, self._fingerprint)

    @override
    async def _build_durable_model(self, ctx: RunContext[Any], request_context: ModelRequestContext) -> DurableModel:
        return live(await super()._build_durable_model(ctx, request_context), self._effective_event_stream_handler())

    @override
    def _model_stream_event_handler(self) -> Any:
        return taking(super()._model_stream_event_handler())

    @override
    def _registered_model_id(self, model: Model[Any]) -> tuple[bool, str | None]:
        is_known, name = super()._registered_model_id(model)
        return (True, MODEL) if not is_known and model is asked_model() else (is_known, name)

    @override
    async def resolve_model_id(self, ctx: ModelResolutionContext[Any], *, model_id: str) -> Model[Any] | None:
        """Return the model of that name."""
        return asked_model() if model_id == MODEL else await super().resolve_model_id(ctx, model_id=model_id)

    @override
    def get_default_run_id(self) -> str | None:
        """Return an id that a replay has too."""
        journal = current_journal()
        return None if journal is None else journal.names.next_run_id()

    @override
    def get_default_conversation_id(self, run_id: str) -> str | None:
        """Return an id that a replay has too."""
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    @override
    async def get_run_start_time(self, run_id: str) -> datetime | None:
        """Return when the run begins; a later claim has a time of its own."""
        return datetime.now(UTC) if self.in_durable_context else None

    @override
    async def wrap_run(self, ctx: RunContext[Any], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        """Keep replayed calls out of traces, and let waits end the attempt."""
        journal = current_journal()
        if journal is None:
            return await handler()
        with (
            journal.names.agent_run(self.name, prompt_of(ctx)),
            replay_scope(),
            external_event_scope(Waiter(journal)),
            Agent.using_sleep(journal.sleep),
        ):
            return await super().wrap_run(ctx, handler=handler)

    @override
    async def prepare_tools(self, ctx: RunContext[Any], tool_defs: list[ToolDefinition]) -> list[ToolDefinition]:
        """Refuse tools that declare what means nothing, or nothing where the step asks for it, before the first request."""
        work = current_work()
        for tool in tool_defs:
            given = declared(tool.name, tool.metadata)
            is_declared = "effect" in given or (tool.metadata or {}).get(KEY) is False
            if (
                work is not None
                and work.step.config.enforce_idempotency
                and not is_declared
                and looks_like_effect(tool.name)
            ):
                what = f"step '{work.step.name}': tool '{tool.name}' looks like an effect; {DECLARE}"
                raise ConfigurationError(what, code="TOOL_EFFECT")
        return tool_defs

    @override
    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: WrapToolExecuteHandler,
    ) -> Any:
        """Let the tools beside one that fails or pauses end first; what else waits in the turn is asked with it."""
        journal = current_journal()
        if journal is None:
            return await handler(args)
        try:
            async with journal.beside_others():
                try:
                    return await handler(args)
                except (ApprovalRequired, CallDeferred) as deferral:
                    put_off(ctx, call, deferral, journal)
                    raise
        except PausedException as pause:
            await ask_with(pause, ctx, journal)
            raise

    @override
    async def handle_deferred_tool_calls(
        self, ctx: RunContext[Any], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Ask people about all calls of the turn that wait for an approval or a result."""
        journal = current_journal()
        return None if journal is None else await answered(ctx, requests, journal)

    @override
    def get_ordering(self) -> CapabilityOrdering:
        """Ask people last."""
        ordering = super().get_ordering()
        return replace(ordering, wrapped_by=(*ordering.wrapped_by, *filter(None, [RequestInput])))


class StepDurability(FlujoDurability):
    """The same, added to a run by its step: it knows all toolsets of the agent, also those that are made in the run."""

    engine_spec = replace(FlujoDurability.engine_spec, unsupported_runtime_toolset_kinds=frozenset({"function", "mcp"}))
