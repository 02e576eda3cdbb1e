"""Claim a run's next attempt in the merge of the one before, if this process will probably take its message as well.

With an idle process and an empty queue, a run saves one of two round trips to Postgres per step (ADR 16). The attempt begins once its message
is published and taken back. If another message is taken first, that one is carried out as well, and the worker that gets the attempt's own
message finds it claimed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flujo_worker.domain.budget import Reservation
from flujo_worker.domain.values import Decision
from flujo_worker.ports import Claim, Committed

FENCE = 1
"""The first fence: of an attempt that is claimed in the commit that creates it."""


class ClaimAhead:
    """The one claim that a process may have ahead of its message.

    Attributes:
        worker: who claims; empty before the first claim.
        is_likely: whether the last message that this process published was also the next that it took: the queue is empty.
    """

    def __init__(self) -> None:
        self.worker = ""
        self.is_likely = False
        self._claimed: tuple[str, Claim] | None = None

    def may_claim(self, decision: Decision) -> bool:
        """Return whether a decision leads only to one step, which may begin at once."""
        if not self.is_likely or len(decision.next) != 1:
            return False
        [following] = decision.next
        aside = decision.child_run or decision.branch_end or decision.lane_left or decision.fan_out
        return (
            following.is_due and following.kind == "step" and not (following.lanes or decision.cache_entries or aside)
        )

    def ask(self, decision: Decision, to_reserve: Sequence[Reservation]) -> Decision:
        """Return the decision with the claim of what follows."""
        following = replace(decision.next[0], claimed_by=self.worker, to_reserve=tuple(to_reserve))
        return replace(decision, next=(following,))

    def note(self, decision: Decision, committed: Committed) -> None:
        """Remember the claim that a merge has made."""
        if committed.claim_id is not None:
            key = decision.next[0].key_in(decision.notice.envelope.ticket.run)
            self._claimed = key, Claim(FENCE, over=committed.over, claim_id=committed.claim_id)

    def has(self, key: str) -> bool:
        """Return whether this attempt was claimed ahead and its message has not arrived."""
        return self._claimed is not None and self._claimed[0] == key

    def pop(self, key: str) -> Claim | None:
        """Return the claim of an attempt once."""
        if self._claimed is None or not self.has(key):
            return None
        (_, claim), self._claimed = self._claimed, None
        return claim
