"""`FlujoDurability`: an agent's calls are units on record (`unit_operations.py`), by pydantic-ai's public interface for durability engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from pydantic_ai import Agent, AgentRunResult
from pydantic_ai.capabilities.abstract import CapabilityOrdering, WrapRunHandler, WrapToolExecuteHandler
from pydantic_ai.durable_exec import BaseDurabilityCapability, DurabilityEngineSpec, conversation_id_from_run_id
from pydantic_ai.durable_exec._utils import DurableModel
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models import Model, ModelRequestContext, ModelResolutionContext
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, RunContext, ToolDefinition
from typing_extensions import override

from flujo_client.errors import ConfigurationError, PausedException
from flujo_client.pipeline.durable import DECLARE, KEY, declared, looks_like_effect
from flujo_worker.agents.asked import Fingerprint, prompt_of
from flujo_worker.agents.durable_library import RequestInput, external_event_scope, replay_scope
from flujo_worker.agents.live_stream import live, taking
from flujo_worker.agents.models import asked_model
from flujo_worker.agents.tool_questions import Waiter, answered, ask_with, put_off
from flujo_worker.agents.unit_operations import Backend, Codec, current_journal
from flujo_worker.runtime.attempt_run import current_work

MODEL: Final = "flujo"
"""The name of the model that an attempt asks: we pass it as an instance, which the agent may not know."""


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
        # They would be no units, in silence.
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
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
        return current_journal() is not None

    @override
    def get_durable_operation_backend(self) -> Backend:
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
        return asked_model() if model_id == MODEL else await super().resolve_model_id(ctx, model_id=model_id)

    @override
    def get_default_run_id(self) -> str | None:
        """Return an id that a replay has too."""
        journal = current_journal()
        return None if journal is None else journal.names.next_run_id()

    @override
    def get_default_conversation_id(self, run_id: str) -> str | None:
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
        asking, waiting = journal.names.agent_run(self.name, prompt_of(ctx)), external_event_scope(Waiter(journal))
        with asking, replay_scope(), waiting, Agent.using_sleep(journal.sleep):
            return await super().wrap_run(ctx, handler=handler)

    @override
    async def prepare_tools(self, ctx: RunContext[Any], tool_defs: list[ToolDefinition]) -> list[ToolDefinition]:
        """Refuse tools that declare what means nothing, or nothing where the step asks for it, before the first request."""
        work = current_work()
        for tool in tool_defs:
            is_declared = "effect" in declared(tool.name, tool.metadata) or (tool.metadata or {}).get(KEY) is False
            is_needed = work is not None and work.step.config.enforce_idempotency and looks_like_effect(tool.name)
            if work is not None and is_needed and not is_declared:
                what = f"step '{work.step.name}': tool '{tool.name}' looks like an effect; {DECLARE}"
                raise ConfigurationError(what, code="TOOL_EFFECT")
        return tool_defs

    @override
    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart, args: Any, handler: WrapToolExecuteHandler, **_: Any
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
