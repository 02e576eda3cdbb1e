"""The coordinator: the only one that moves a run. decide → commit → publish, in this order (law).

It is called at the tail of an attempt's own task, and by the sweeper for what no attempt can say any more.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from flujo_client.contract.outcome import Event, Fault, Outcome
from flujo_client.pipeline.submit import by_reference
from flujo_worker import failpoints
from flujo_worker.domain.decide import decide
from flujo_worker.domain.values import Notice
from flujo_worker.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from flujo_client.contract.envelope import Envelope
    from flujo_client.pipeline.plan import Plan
    from flujo_client.pipeline.step import Backoff
    from flujo_client.serial import Packed
    from flujo_worker.domain.values import Decision
    from flujo_worker.ports import Ledger, Verdict

logger = logging.getLogger(__name__)


class Coordinator:
    """Moves runs.

    Args:
        ledger: where decisions are committed.
        send: publishes an envelope after the commit; what it cannot send, the sweeper will.
        backoff: the waits of steps that set none of their own.
        inline: the size in bytes above which a value is stored once and pointed at.
    """

    def __init__(
        self, ledger: Ledger, send: Callable[[Envelope], None], *, backoff: Backoff, inline: int = 65_536
    ) -> None:
        self._ledger, self._send, self._backoff, self._inline = ledger, send, backoff, inline
        self._plans: dict[str, Plan] = {}

    def conclude(self, notice: Notice) -> Verdict:
        """Merge what came of an attempt, and publish what follows.

        Returns:
            merged: done. repeated: it had been done. stale or stopped: refused, only the spend was recorded.
        """
        notice = self._stored_aside(notice)
        decision = decide(self._plan(notice.envelope.ticket.fingerprint), notice, backoff=self._backoff)
        verdict = self._ledger.commit(decision)
        if verdict in ("merged", "repeated"):
            failpoints.hit("before_publish")
            self._publish(decision)
            failpoints.hit("after_publish")
        else:
            self._refused(notice, verdict)
        return verdict

    def lost(self, envelope: Envelope, fence: int, times: int) -> Verdict:
        """Fail a step whose worker died under it every time (poison)."""
        said = f"{times} workers in a row were lost while running it"
        fault = Fault(
            "system", "AttemptLost", said, f"Step execution failed with AttemptLost: {said}", code="ATTEMPT_LOST"
        )
        return self.conclude(Notice(envelope, fence, Outcome("lost", fault=fault)))

    def _plan(self, fingerprint: str) -> Plan:
        plan = self._plans.get(fingerprint) or self._ledger.plan(fingerprint)
        if plan is None:
            raise StoreError(f"no plan with fingerprint {fingerprint}")
        self._plans[fingerprint] = plan
        return plan

    def _stored_aside(self, notice: Notice) -> Notice:
        """Store values above the inline limit once, and go on with references to them."""
        outcome = notice.outcome
        large = [each for each in (outcome.output, outcome.context) if each is not None and each.size > self._inline]
        if not large:
            return notice
        self._ledger.keep(large)
        outcome = replace(outcome, output=self._light(outcome.output), context=self._light(outcome.context))
        return replace(notice, outcome=outcome)

    def _light(self, packed: Packed | None) -> Packed | None:
        return None if packed is None else by_reference(packed, self._inline)

    def _publish(self, decision: Decision) -> None:
        following = decision.next
        if following is None or following.delay_s > 0:
            return
        move, before = decision.move, decision.notice.envelope
        self._send(
            replace(
                before,
                address=following.address,
                step=following.step,
                number=following.number,
                version=before.version + move.merges,
                input=move.output or before.input,
                context=move.context or before.context,
                guidance=following.guidance,
                queue=following.queue,
                kind=following.kind,
            )
        )

    def _refused(self, notice: Notice, verdict: Verdict) -> None:
        envelope = notice.envelope
        logger.warning("outcome of %s under fence %d refused: %s", envelope.key, notice.fence, verdict)
        data = {"fence": notice.fence, "verdict": verdict, "outcome": notice.outcome.kind}
        self._ledger.note(envelope.ticket.run, [Event("outcome.refused", data, "warning")], key=envelope.key)
