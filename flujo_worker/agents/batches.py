"""Ask the model requests of durable steps in batches of a provider, pooled over runs and workers (ADR 56).

A request is on record with its body, and its attempt leaves the worker. Whichever attempt of the pool is performed next does what is due for
all: it submits what waits, or asks the provider about a batch.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, Final, cast

from pydantic import TypeAdapter
from pydantic_ai.exceptions import ModelAPIError, UserError
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.batch import Batch, BatchRequest, BatchResult, EncodedBatchRequest

from flujo_client.contract.processing import BatchSettings
from flujo_client.serial import Packed
from flujo_worker import failpoints
from flujo_worker.agents.asked import lasting
from flujo_worker.domain.budget import Amount
from flujo_worker.domain.units import BatchedRequest, HeldBatch, RequestState, Unit
from flujo_worker.durable.journal import Journal
from flujo_worker.observe.log import emit
from flujo_worker.runtime.attempt_run import in_thread

LONGEST_S: Final = 3600.0
"""The longest wait of an attempt for a batch that another one asks about: that one may never come back."""
SLOWEST_S: Final = 600.0
"""The longest time between two questions about a batch."""
CLOCKS_S: Final = 300.0
"""Seconds that a provider's clock may be behind Postgres's."""
REFUSALS: Final = frozenset({400, 401, 403, 404, 413, 422})
"""The HTTP statuses after which a batch is not submitted again."""
_BATCH: Final = TypeAdapter(Batch)
_UNRUN: Final = Packed.of({"status": "expired", "body": None})


class InBatches:
    """One request that is asked in a batch: `response` is the answer, once it is there; without one it is asked live."""

    def __init__(
        self,
        journal: Journal,
        own: BatchSettings,
        model: Model[Any],
        messages: Sequence[ModelMessage],
        settings: Any,
        parameters: ModelRequestParameters,
    ) -> None:
        self._journal, self._own, self._model, self._store = journal, own, model, journal.batches
        lasts = cast("Any", lasting(settings))
        self._request = BatchRequest(
            custom_id="", messages=list(messages), model_settings=lasts, model_request_parameters=parameters
        )
        self.response: ModelResponse | None = None

    async def begin(self, live: Callable[[Unit], Awaitable[None]] | None, unit: Unit) -> None:
        """Take the answer from a batch; raises AttemptWaits while there is none. Without one to come, begin it live."""
        self.response = await self._answer(unit)
        if self.response is None and live is not None:
            await live(unit)

    def expected(self, live: Callable[[], Amount]) -> Amount:
        """Return what it may still cost, without what a batch has already answered."""
        return live() if self.response is None else Amount()

    async def send(self, dump: Callable[[ModelResponse], Any], live: Callable[[], Awaitable[Any]]) -> Any:
        """Return the answer in its stored form, or ask live."""
        return await live() if self.response is None else dump(self.response)

    async def _answer(self, unit: Unit) -> ModelResponse | None:
        self._request.custom_id = blake2b(unit.id.encode(), digest_size=16).hexdigest()
        try:
            encoded = await self._model.batch_encode(self._request)
        except UserError as error:  # a setting that batches lack
            _emit_live(str(error))
            return None
        asked = self._asked(unit, encoded)
        state, is_watching = await in_thread(partial(self._store.ask, asked)), False
        if state.result is None and state.left_s > 0:
            is_watching = await self._work(asked.pool, encoded.group)
            state = await in_thread(partial(self._store.ask, asked))
        if state.result is not None:
            return self._decoded(state.result)
        if state.left_s <= 0:
            _emit_live("it has waited for too long")
            return None
        wait_s = min(state.left_s, self._wait_s(state, is_watching=is_watching))
        return await self._journal.go_on_later(wait_s, "a batch of the provider has no answer yet")

    def _asked(self, unit: Unit, encoded: EncodedBatchRequest) -> BatchedRequest:
        pool = blake2b(f"{self._model.system} {encoded.group}".encode(), digest_size=16).hexdigest()
        size = self._model.batch_request_size(encoded)
        body, deadline_s = Packed.of(encoded.body), self._own.deadline_s
        return BatchedRequest(encoded.custom_id, unit.run, unit.name.place, pool, body, size, deadline_s)

    def _decoded(self, result: Packed) -> ModelResponse | None:
        try:
            given = BatchResult(custom_id=self._request.custom_id, **result.tree())
            return self._model.batch_decode(given, self._request)
        except ModelAPIError as error:
            _emit_live(str(error))
            return None

    def _wait_s(self, state: RequestState, *, is_watching: bool) -> float:
        if not state.is_taken:
            return max(0.0, self._own.wait_s - state.age_s)
        often_s = max(self._own.poll_s, min(SLOWEST_S, state.age_s / 10))  # soon at first, then less often
        return often_s if is_watching else min(LONGEST_S, max(10 * often_s, state.age_s))

    async def _work(self, pool: str, group: str) -> bool:
        """Do what is due in the pool; return whether this attempt is to look after a batch that has not ended."""
        most, is_watching = self._model.batch_max_requests, False
        assert most is not None, "the model has batches"
        bounds: dict[str, Any] = {"most": most, "most_bytes": self._model.batch_max_bytes}
        take = partial(self._store.take, pool, self._journal.claim, wait_s=self._own.wait_s, **bounds)
        while (held := await in_thread(take)) is not None:
            try:
                goes_on = await self._moved_on(held, group)
            except Exception as error:  # noqa: BLE001 - of the provider's client, each of which has its own
                goes_on = await self._failed(held, error)
            is_watching = is_watching or goes_on
        return is_watching

    async def _failed(self, held: HeldBatch, error: Exception) -> bool:
        """Look at a batch again later, unless the provider has refused it: its requests are asked live. Return whether it is to be looked at."""
        status = getattr(error, "status_code", None)
        is_refused = held.handle is None and status in REFUSALS
        emit("batch.failed", "warning", batch=held.id, error=type(error).__name__, status=status, refused=is_refused)
        if is_refused:
            await in_thread(partial(self._store.end, held.id, {}, _UNRUN))
        else:
            await self._put_back(held, None)
        return not is_refused

    async def _put_back(self, held: HeldBatch, handle: Mapping[str, Any] | None) -> None:
        after_s = self._own.poll_s / 2  # before this attempt comes back
        await in_thread(partial(self._store.put_back, held.id, self._journal.claim, handle, after_s=after_s))

    async def _moved_on(self, held: HeldBatch, group: str) -> bool:
        """Submit a batch, or ask about it; return whether it has not ended."""
        if held.handle is None:
            batch = await self._submitted(held, group)
        else:
            batch = await self._model.batch_status(_BATCH.validate_python(held.handle))
        if batch is not None and batch.status != "ended":
            await self._put_back(held, _BATCH.dump_python(batch, mode="json"))
            return True
        found = [] if batch is None else await self._model.batch_results(batch)
        results = {each.custom_id: Packed.of({"status": each.status, "body": each.body}) for each in found}
        await in_thread(partial(self._store.end, held.id, results, _UNRUN))
        emit("batch.ended", batch=held.id, answered=sum(each.status == "succeeded" for each in found))
        return False

    async def _submitted(self, held: HeldBatch, group: str) -> Batch | None:
        """Submit an announced batch, unless the provider has it; None: nothing in it waits any more."""
        bodies = await in_thread(partial(self._store.requests, held.id))
        if not bodies:
            return None
        if not held.is_new and (known := await self._found(held, {each for each, _ in bodies}, group)) is not None:
            emit("batch.found", "warning", batch=held.id, requests=len(bodies))
            return known
        failpoints.hit("batch_announced")
        requests = [EncodedBatchRequest(custom_id=each, group=group, body=body.tree()) for each, body in bodies]
        batch = await self._model.batch_create(requests)
        failpoints.hit("batch_submitted")
        emit("batch.submitted", batch=held.id, requests=len(requests))
        return batch

    async def _found(self, held: HeldBatch, ids: set[str], group: str) -> Batch | None:
        """Find a batch that was announced, and possibly submitted, by the ids of its requests. Only OpenAI's list leads to these."""
        client, library = getattr(self._model, "client", None), sys.modules.get("openai")
        if library is None or not isinstance(client, library.AsyncOpenAI):
            return None
        async for each in client.batches.list(limit=100):
            if each.created_at < held.began - CLOCKS_S:
                return None
            try:
                first = (await client.files.content(each.input_file_id)).text.partition("\n")[0]
            except library.NotFoundError:  # it was read, and its file deleted
                continue
            if any(f'"{known}"' in first for known in ids):
                known = {"model_name": self._model.model_name, "provider_name": self._model.system, "group": group}
                made = {"id": each.id, "status": "in_progress", "created_at": each.created_at}
                batch = _BATCH.validate_python({**known, **made, "request_count": len(ids)})
                return await self._model.batch_status(batch)
        return None


def _emit_live(why: str) -> None:
    emit("batch.live", "warning", reason=why)
