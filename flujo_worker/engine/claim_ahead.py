"""Claim a run's next attempt in the merge of the one before, if this process will probably take its message as well.

    unlikely ──── own message taken back ────► likely ──── a merge claims ────► claimed
      ▲ ▲                                       │ ▲                              │ │
      │ └──────── another message, or none ─────┘ └──── own message taken back ──┘ │
      └───────────────────────── another message, or none ─────────────────────────┘

With an idle process and an empty queue, a run saves one of two round trips to Postgres per step (ADR 16). What is claimed begins once its message
is published, and taken back in the same round trip. If another message is taken instead, that one is carried out as well, and the worker that
gets the attempt's message finds it claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from flujo_worker.ports import Claim

if TYPE_CHECKING:
    from flujo_client.contract.envelope import AttemptKind, Envelope
    from flujo_client.transport.loop_publisher import Taken
    from flujo_worker.domain.budget import Reservation
    from flujo_worker.domain.values import Decision
    from flujo_worker.ports import Committed

FENCE = 1
"""The first fence: of an attempt that is claimed in the commit that creates it."""


class Taker:
    """Takes messages in addition to the consumer: none, unless a pool replaces it."""

    def wants(self, kind: AttemptKind, queue: str) -> bool:  # noqa: ARG002 - for those who do
        """Return whether the process may carry out one more attempt of this kind from this queue."""
        return False

    def spare(self, kind: AttemptKind, queue: str) -> int:  # noqa: ARG002 - likewise
        """Return how many such attempts the process may carry out besides those that its consumer has requested."""
        return 0

    def take_own(self, envelope: Envelope) -> None:
        """Carry out an attempt that was wanted and whose message this process has written."""

    def take_item(self, item: bytes, queue: str) -> bool:  # noqa: ARG002 - likewise
        """Carry out a message of a queue; return False if it is not to be taken so."""
        return False


class ClaimAhead:
    """The one claim that a process may have ahead of its message.

    Args:
        is_alone: returns whether the process carries out only one message.

    Attributes:
        worker: who claims; empty before the first claim.
        taker: takes the next message; a `Taker` that takes none until the process consumes.
        known_reservations: returns the reservations for a step's claim, or None if computing them requires a look-up.
    """

    def __init__(self, is_alone: Callable[[], bool]) -> None:
        self.worker, self.taker = "", Taker()
        self.known_reservations: Callable[[Envelope], Sequence[Reservation] | None] = lambda _: None
        self._is_alone, self._is_likely = is_alone, False
        self._claimed: tuple[str, Claim] | None = None

    def asking(self, decision: Decision) -> Decision:
        """Return a decision with the claim of the only step that follows and may begin at once; without one if another will probably take it."""
        if not (self._is_likely and len(decision.next) == 1 and self._is_alone()):
            return decision
        [following] = decision.next
        is_step_now = following.kind == "step" and following.sent_after_s == 0
        aside = decision.child_run or decision.branch_end or decision.lane_left or decision.fan_out
        if not is_step_now or following.lanes or decision.cache_entries or aside:
            return decision
        is_limited = decision.notice.envelope.ticket.limits is not None
        to_reserve = self.known_reservations(decision.envelope_of(following)) if is_limited else ()
        if to_reserve is None or not self.taker.wants(following.kind, following.queue):
            return decision
        return replace(decision, next=(replace(following, claimed_by=self.worker, to_reserve=tuple(to_reserve)),))

    def note(self, decision: Decision, committed: Committed) -> None:
        if committed.claim_id is not None:
            key = decision.next[0].key_in(decision.notice.envelope.ticket.run)
            self._claimed = key, Claim(FENCE, over=committed.over, claim_id=committed.claim_id)

    def has(self, key: str) -> bool:
        """Return whether this attempt is claimed and has not begun."""
        return self._claimed is not None and self._claimed[0] == key

    def pop(self, key: str) -> Claim | None:
        """Return the claim of an attempt once."""
        if self._claimed is None or not self.has(key):
            return None
        (_, claim), self._claimed = self._claimed, None
        return claim

    def takes(self, envelopes: Sequence[Envelope]) -> bool:
        """Return whether a message is to be taken in the round trip that publishes these."""
        first = envelopes[0]
        is_next = self.has(first.key) or (len(envelopes) == 1 and self._is_alone())
        return is_next and self.taker.wants(first.kind, first.queue)

    def published(self, first: Envelope, taken: Sequence[Taken]) -> None:
        """Note which messages were taken at a publication. Begin a claimed attempt even if its message was not taken back."""
        self._is_likely = is_own = any(each.own for each in taken)
        if not is_own and self.has(first.key):
            self.taker.take_own(first)
