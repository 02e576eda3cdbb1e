"""One attempt and the concurrency limit of its step: it asks before it begins, and its end lets the next one begin.

It must not count permits: the store does. In: a claimed attempt and its step. Out: whether it may run; who is published after it.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from flujo_client.errors import FlujoError, NonRetryableError
from flujo_client.pipeline.limited import is_per_value, limit_name
from flujo_client.serial import decode
from flujo_worker.domain.permit import PermitRequest
from flujo_worker.errors import StoreError
from flujo_worker.user_code.question import fetched

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from flujo_client.contract.envelope import Envelope
    from flujo_client.contract.limit import Limit
    from flujo_worker.ports import Store
    from flujo_worker.runtime.effects import Effects


logger = logging.getLogger(__name__)


class LimitRefusal(Exception):
    """An attempt fails at its step's limit, before it has begun; `cause` says why."""

    def __init__(self, cause: FlujoError) -> None:
        super().__init__(cause.message)
        self.cause = cause


class PermitGate:
    """One attempt at its step's limit.

    Args:
        store: where permits are counted.
        release: releases a permit, by the attempt's key and the limit's name, and publishes who takes its place.
        effects: how answers are waited for.
        resolve: finds the classes that values are made of.
        envelope: the attempt's.
        limit: the step's; None where it has none.
        share: adds to the limit's name who shares it.
    """

    def __init__(
        self,
        store: Store,
        release: Callable[[str, str], None],
        effects: Effects,
        resolve: Callable[[str], Any],
        envelope: Envelope,
        limit: Limit | None,
        share: Callable[[Limit, str], str],
    ) -> None:
        self._store, self._release, self._effects, self._resolve = store, release, effects, resolve
        self._envelope, self._limit, self._share = envelope, limit, share
        self._name: str | None = None

    async def holds_back(self, fence: int) -> bool:
        """Ask for a permit; without one, the attempt is returned, to be published again when it is its turn.

        Raises:
            LimitRefusal: the name of the limit cannot be filled in, or the limit drops what finds no place.
        """
        limit = self._limit
        if limit is None:
            return False
        try:
            name = self._share(limit, await self._fill_name(limit))
        except StoreError:
            raise
        except FlujoError as error:
            raise LimitRefusal(error) from error
        envelope = self._envelope
        request = PermitRequest(envelope.key, fence, envelope.step, name, limit.at_once, limit.on_full)
        if not await self._effects.call(self._store.request_permit, request):
            if limit.on_full == "drop":
                raise LimitRefusal(_reached(name, limit.at_once))
            return True
        self._name = name
        return False

    async def release(self) -> None:
        """Let the next attempts begin. If that fails, the sweeper does it."""
        if self._name is None:
            return
        try:
            await self._effects.call(self._release, self._envelope.key, self._name)
        except StoreError as error:
            logger.warning("attempts that wait at limit %s are left to the sweeper: %s", self._name, error)

    async def _fill_name(self, limit: Limit) -> str:
        fill = partial(limit_name, limit, tenant=self._envelope.ticket.tenant)
        if not is_per_value(limit):
            return fill(None, None)
        return await self._effects.call(self._filled, fill)

    def _filled(self, fill: Callable[[Any, Any], str]) -> str:
        envelope = self._envelope
        if envelope.references:
            envelope = envelope.inline(fetched(self._store, envelope.references))
        context = None if envelope.context is None else decode(envelope.context.tree(), resolve=self._resolve)
        return fill(decode(envelope.input.tree(), resolve=self._resolve), context)


def _reached(name: str, at_once: int) -> FlujoError:
    return NonRetryableError(
        f"the limit '{name}' is reached: {at_once} of {at_once} places are taken",
        suggestion="give the step a fallback, or the limit `on_full='queue'` to let it wait",
        code="LIMIT_REACHED",
    )
