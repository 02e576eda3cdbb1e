"""Remember the scopes above an attempt that this process claimed in the merge that created it, as that merge left them.

Under that claim, only the attempt's own merge changes them, or a stop of its run, after which no merge is accepted. So they need not be read
again. In: decisions that were merged here. Out: rows.
"""

from __future__ import annotations

from flujo_worker.domain.values import AttemptReport, Decision, ReadScope, ScopeRow
from flujo_worker.ports import Committed


class KnownScopes:
    """The scopes above the last attempt that was claimed ahead."""

    def __init__(self) -> None:
        self._claim: tuple[str, str] | None = None
        self._rows: dict[str, ScopeRow] = {}

    def find(self, notice: AttemptReport, request: ReadScope) -> ScopeRow | None:
        """Return the row of a scope that a decision asks for, if it is known."""
        if request.children or request.child_run is not None or not self._are_of(notice):
            return None
        return self._rows.get(request.address)

    def note(self, decision: Decision, committed: Committed) -> None:
        """Remember the scopes after a merge that claimed the next attempt. That attempt's own scope is not known completely."""
        if committed.claim_id is None:
            return
        notice, following = decision.notice, decision.next[0]
        kept = self._rows if self._are_of(notice) else {}
        moved = {each.address for each in decision.moves}
        rows = {address: row for address, row in kept.items() if address not in moved}
        self._rows = rows | {row.address: row for row in decision.above}
        self._claim = following.key_in(notice.envelope.ticket.run), committed.claim_id

    def _are_of(self, notice: AttemptReport) -> bool:
        return self._claim == (notice.envelope.key, notice.claim_id)
