"""Claim a run's next attempt in the merge of the one before, where this process is about to take that one's message as well.

A run that has an idle process and an empty queue to itself so saves one of two round trips to Postgres per step (ADR 16). The attempt
begins once the merge is committed, while its message is published and taken. If another message is taken in its place, that is carried
out as well, and whoever gets the attempt's own finds it claimed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from flujo_worker.ports import Claim

if TYPE_CHECKING:
    from flujo_worker.domain.values import Decision
    from flujo_worker.ports import Committed

FENCE = 1
"""Of an attempt that was claimed as it was made."""


class ClaimAhead:
    """The one claim that a process may have ahead of its message.

    Attributes:
        worker: who claims; empty before the first claim.
        is_likely: whether the last message that was taken in publishing one was that very one: the queue is empty.
    """

    def __init__(self) -> None:
        self.worker = ""
        self.is_likely = False
        self._claimed: tuple[str, Claim] | None = None

    def may_claim(self, decision: Decision) -> bool:
        """Return whether a decision leads to one step and nothing else, which a claim needs to know nothing more about."""
        if not self.is_likely or len(decision.next) != 1 or decision.notice.envelope.ticket.limits is not None:
            return False
        [following] = decision.next
        aside = decision.child_run or decision.branch_end or decision.lane_left or decision.fan_out
        return (
            following.is_due and following.kind == "step" and not (following.lanes or decision.cache_entries or aside)
        )

    def ask(self, decision: Decision) -> Decision:
        """Return the decision with the claim of what follows."""
        return replace(decision, next=(replace(decision.next[0], claimed_by=self.worker),))

    def note(self, decision: Decision, committed: Committed) -> None:
        """Remember what a merge has claimed."""
        if committed.claimed_at is not None:
            key = decision.next[0].key_in(decision.notice.envelope.ticket.run)
            self._claimed = key, Claim(FENCE, claimed_at=committed.claimed_at)

    def has(self, key: str) -> bool:
        """Return whether this attempt was claimed ahead and its message has not come."""
        return self._claimed is not None and self._claimed[0] == key

    def pop(self, key: str) -> Claim | None:
        """Return the claim of an attempt once."""
        if self._claimed is None or self._claimed[0] != key:
            return None
        (_, claim), self._claimed = self._claimed, None
        return claim
