"""What an agent asks, as units: operations of pydantic-ai's interface for durability engines, performed by the attempt's journal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import TypeAdapter, ValidationError
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    DurabilityCodec,
    DurableOperationId,
    EventStreamHandlerId,
    JournalCallableOperationBackend,
    ModelCancelSuspendedResponseId,
    ModelCompactMessagesId,
    ModelRequestId,
    RoleBasedOperationConfig,
    ToolsetCallToolId,
    ToolsetValidateToolArgumentsId,
)
from pydantic_ai.messages import ModelResponse
from pydantic_ai.usage import RunUsage
from typing_extensions import override

from flujo_client.attempt_info import current_unit
from flujo_client.contract.outcome import Usage
from flujo_client.contract.processing import BatchSettings
from flujo_client.errors import NonRetryableError
from flujo_client.pipeline.durable import KEY
from flujo_worker.agents.asked import Fingerprint, asked
from flujo_worker.agents.durable_library import record_durable_unit
from flujo_worker.agents.previews import AGENT_TOOL
from flujo_worker.agents.pricing import usage_of
from flujo_worker.agents.requests import PacedRequest, expected_cost
from flujo_worker.agents.tool_questions import effect_of, outcome_of
from flujo_worker.durable.context_writes import is_with_patch
from flujo_worker.durable.journal import Journal
from flujo_worker.durable.names import UnitCall
from flujo_worker.runtime.attempt_run import current_run

if TYPE_CHECKING:
    from flujo_worker.agents.batches import InBatches

Body: TypeAlias = Callable[[], Awaitable[Any]]
RequestId: TypeAlias = ModelRequestId | ModelCompactMessagesId
_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


class Codec(DurabilityCodec):
    """Leaves values to our serialisation, which keeps what JSON does not: NaN, large integers, bytes."""

    @override
    def dump(self, tp: Any, value: Any) -> Any:
        return _adapter(tp).dump_python(value)

    @override
    def load(self, tp: Any, payload: Any) -> Any:
        try:
            return JSON_CODEC.load(tp, payload)
        except ValidationError as error:
            what = f"a recorded answer is not a valid {getattr(tp, '__name__', tp)} for this code: {error.errors()[0]['msg']}"
            way_out = "other code recorded it: deploy that again, or run the step again with `flujo runs retry RUN`"
            raise NonRetryableError(what, suggestion=way_out, code="UNIT_RECORD") from None


class Backend(JournalCallableOperationBackend[Any]):
    """Executes units of one agent."""

    def __init__(self, agent_name: str, default_model_id: str | None, fingerprint: Fingerprint) -> None:
        config = RoleBasedOperationConfig[Any](model={}, event={}, capability={}, tool={}, resolve_tool=_config_of)
        super().__init__(agent_name=agent_name, default_model_id=default_model_id, config=config)
        self._fingerprint = fingerprint

    @override
    async def execute(
        self, *, operation_id: DurableOperationId, name: str, body: Body, cache_key: tuple[Any, ...], config: Any
    ) -> object:
        """Answer a unit from its record, or perform and record it. Events of a stream are passed on and are not units.

        Nor is the cancellation of a provider's job, which the library requests however a run ends: an attempt that continues later needs the job.
        """
        journal = current_journal()
        if isinstance(operation_id, ModelCancelSuspendedResponseId):
            return None if journal is not None and journal.is_over else await body()
        if journal is None or isinstance(operation_id, EventStreamHandlerId):
            return await body()
        is_tool = isinstance(operation_id, ToolsetCallToolId)
        effect = effect_of(cache_key[0], _metadata(cache_key[3])) if is_tool else None
        is_effect = effect is not None
        what = asked(operation_id, cache_key, self._fingerprint, journal.digests, is_effect=is_effect)
        writes = journal.context_writes
        if is_tool and writes.applies(cache_key[2].deps):
            body = writes.on_a_copy(cache_key[2], body)
        call = UnitCall(name, what.data, effect, parts=what.parts)
        if effect == "once":
            call = replace(call, in_doubt=partial(outcome_of, cache_key[0], cache_key[1]))
        if isinstance(operation_id, RequestId):
            call, body = _request_call(journal, operation_id, cache_key, call, body)
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


def _request_call(
    journal: Journal, operation: RequestId, inputs: tuple[Any, ...], call: UnitCall, body: Body
) -> tuple[UnitCall, Body]:
    """Return a model request as a paid unit, and what performs it: at the model's rate, or in a batch, as its step is configured."""
    request = _request(operation, inputs)
    model, expected = f"{request[0].system}:{operation.model_name}", partial(expected_cost, *request)
    call = replace(call, is_paid=True, model=model, usage=partial(_usage_of, operation, model), expected=expected)
    if not isinstance(operation, ModelRequestId):
        return call, body
    if (pace := journal.run.pace) is not None:
        paced = PacedRequest(pace, *request)
        sleep = partial(journal.wait, why="the model's rate limit allows no request before")
        call = replace(call, begin=lambda _: paced.begin(sleep))
        body = partial(paced.send, body, lambda it: it["usage"]["input_tokens"] + it["usage"]["output_tokens"])
    if (batched := _batched(journal, inputs)) is not None:
        call = replace(call, begin=partial(batched.begin, call.begin), expected=partial(batched.expected, expected))
        body = partial(batched.send, partial(Codec().dump, ModelResponse), body)
    return call, body


def _request(operation: RequestId, inputs: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    if isinstance(operation, ModelRequestId):
        _, messages, settings, _, ctx = inputs
        return ctx.model, messages, settings
    _, context, _, ctx = inputs
    return ctx.model, context.messages, None


def _batched(journal: Journal, inputs: tuple[Any, ...]) -> InBatches | None:
    """Return how a request is asked in a batch, if its step and model do so; not in a tool, for that would be called again."""
    _, messages, settings, parameters, ctx = inputs
    work, most = journal.run.work, getattr(ctx.model, "batch_max_requests", None)  # older releases have no batches
    own = None if work is None else BatchSettings.of(work.step.processing)
    if own is None or most is None or current_unit() is not None:
        return None
    from flujo_worker.agents.batches import InBatches

    return InBatches(journal, own, ctx.model, messages, settings, parameters)


def _usage_of(operation: RequestId, model: str, payload: Any) -> Usage:
    given = payload.get("response", payload)  # of a stream it is beside the events
    response: ModelResponse = JSON_CODEC.load(ModelResponse, given)
    if response.usage.cost is None and response.model_name is not None:
        with suppress(LookupError):  # no list of prices has it; the library looks only after the unit
            response.usage.cost = response.cost().total_price
    spent = RunUsage(requests=1)
    spent.incr(response.usage)
    return replace(usage_of(spent, response, operation.model_name), model=model)


def _metadata(tool: Any) -> Mapping[str, Any]:
    return getattr(getattr(tool, "tool_def", tool), "metadata", None) or {}


def _config_of(operation: DurableOperationId, tool: Any, _: str) -> Any:
    """Return False where a tool's call, or the check of its arguments, is no unit: an agent as a tool is none, only its calls are."""
    if tool is None:
        return {}
    metadata = _metadata(tool)
    is_none = metadata.get(KEY) is False or AGENT_TOOL in metadata
    return False if is_none or isinstance(operation, ToolsetValidateToolArgumentsId) else {}
