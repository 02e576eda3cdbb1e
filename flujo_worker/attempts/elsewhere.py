"""Leave to other workers what this process lacks something for: a key, code, a module. That is not the run's fault, and counts nowhere."""

from __future__ import annotations

import logging
import random
from typing import Final

from flujo_client.contract.code import AwaitedCode, ParkCause
from flujo_client.contract.envelope import Envelope
from flujo_client.contract.outcome import Event, Outcome
from flujo_client.errors import KeyMissing
from flujo_client.redact import redact
from flujo_worker.attempts.attempt import AttemptServices, StagedAttempt
from flujo_worker.attempts.isolation import DeliveryResult
from flujo_worker.attempts.needs import Preparation
from flujo_worker.changed_code.code_changes import CodeChanges
from flujo_worker.changed_code.code_registry import CodeMismatch
from flujo_worker.own_keys import OwnKeys

logger = logging.getLogger(__name__)

ASK_AGAIN_S: Final = 2.0
"""Seconds until an attempt is retried whose run still has attempts running under its old code."""
ELSEWHERE_S: Final = 0.5, 1.5
"""After how many seconds a message that this process cannot decrypt is sent again, drawn at random from between."""


class Elsewhere:
    """Leaves attempts to other workers. Without `changes` one whose code has changed is parked; without `keys` what cannot be decrypted was changed."""

    def __init__(
        self, services: AttemptServices, preparation: Preparation, changes: CodeChanges | None, keys: OwnKeys | None
    ) -> None:
        self._stores, self._lease, self._effects = services.stores, services.lease, services.effects
        self._preparation, self._changes, self._keys = preparation, changes, keys

    async def postpone(self, key: str) -> DeliveryResult:
        """Have a message sent again in a while, for a worker that can decrypt it."""
        await self._effects.call(self._stores.attempts.postpone, key, random.uniform(*ELSEWHERE_S))  # noqa: S311 - jitter
        return DeliveryResult("waiting")

    async def leave_message(self, key: str, error: KeyMissing) -> DeliveryResult:
        """Leave the attempt of a message whose key is not here. Its row may have been encrypted with another one since."""
        await self._effects.call(self._check_row, key, error)
        return await self.postpone(key)

    def _check_row(self, key: str, error: KeyMissing) -> None:
        try:
            for envelope in self._stores.backlog.envelopes([key]):
                Envelope.from_wire(envelope.to_wire())
        except KeyMissing:
            if self._keys is not None:
                self._keys.lacks(f"value_keys.{error.key_id}")

    async def leave(self, attempt: StagedAttempt, lack: KeyMissing | CodeMismatch) -> DeliveryResult:
        """Release a claimed attempt for which this process lacks code or a key.

        If the key of a value is here, the value was changed, or its writer has another secret: the run is parked, until a worker can read it.
        """
        if isinstance(lack, CodeMismatch):
            return await self._change_code(attempt, lack)
        key, keys, call = attempt.active.key, self._keys, self._effects.call
        if keys is None or not await call(keys.lacks, f"value_keys.{lack.key_id}"):
            cause = ParkCause("key", lack.key_id)
            return await self._park(attempt, f"a value is {lack.message}", cause, self._preparation.refuse(key))
        return await self.hand_back(key)

    async def hand_back(self, key: str) -> DeliveryResult:
        """Let another worker begin an attempt again, at once."""
        call = self._effects.call
        if moved := await call(self._stores.leases.hand_back, self._lease.worker, [key]):
            await self._effects.send(await call(self._stores.backlog.envelopes, moved), None)
        return DeliveryResult("waiting")

    async def leave_to_other_build(self, attempt: StagedAttempt, outcome: Outcome) -> bool:
        """Leave a step that found a module missing to another live build that may have it; where none does, that is a bug of the step."""
        fault, changes, active, call = outcome.fault, self._changes, attempt.active, self._effects.call
        if fault is None or fault.type_name != ModuleNotFoundError.__name__ or changes is None:
            return False
        if not await call(changes.leave_to_other_build, attempt.message, active.claim, redact(fault.message)):
            return False
        run = attempt.message.ticket.run
        await call(self._stores.attempts.spend, run, active.claim, outcome.usage, active.reserved)
        return True

    async def _change_code(self, attempt: StagedAttempt, finding: CodeMismatch) -> DeliveryResult:
        """Move the run to this worker's code, wait until that is possible, or park it with the reason."""
        active, call = attempt.active, self._effects.call
        if self._changes is None or finding.loaded is None:
            awaited = self._preparation.awaited(finding, active.key)
            return await self._hand_over_or_park(attempt, str(finding), finding.cause, awaited)
        run, plan = attempt.message.ticket.run, finding.loaded.plan
        carried = await call(self._changes.carry_on, run, plan, mine=active.key)
        if carried.verdict == "moved":
            return DeliveryResult("moved")
        if carried.verdict == "refused":
            return await self._hand_over_or_park(attempt, carried.reason, carried.cause)
        waiting = Event("run.waits_for_old_code", {"reason": carried.reason})
        await call(self._stores.attempts.defer, active.claim, ASK_AGAIN_S, waiting)
        return DeliveryResult("waiting")

    async def _hand_over_or_park(
        self, attempt: StagedAttempt, why: str, cause: ParkCause, awaited: AwaitedCode | None = None
    ) -> DeliveryResult:
        """Leave the attempt to a live worker that has its code; without one, park its run."""
        changes, reason, given = self._changes, redact(why), (attempt.message, attempt.active.claim)
        if changes is not None and await self._effects.call(changes.hand_over, *given, reason, awaited):
            return DeliveryResult("waiting")
        return await self._park(attempt, reason, cause, awaited)

    async def _park(
        self, attempt: StagedAttempt, why: str, cause: ParkCause, awaited: AwaitedCode | None = None
    ) -> DeliveryResult:
        active, reason, shown = attempt.active, redact(why), cause._replace(what=redact(cause.what))
        logger.error("run %s is parked: %s", attempt.message.ticket.run, reason)
        await self._effects.call(self._stores.plan_moves.park, active.claim, reason, cause=shown, code=awaited)
        return DeliveryResult("parked")
