"""Permits of concurrency limits: who asks for one, and what is recorded of one that waits. Pure."""

from __future__ import annotations

from typing import Final

from flujo_client.address import AttemptKey
from flujo_client.contract.admission import OnFull
from flujo_client.contract.outcome import Event
from flujo_client.frozen import frozen

PATIENCE_S: Final = 10.0
"""Seconds that a free place is reserved for the attempt that was sent to take it."""
ASK_AGAIN_S: Final = 600.0
"""Seconds until a waiting attempt asks again. A free place is offered at once, and by each sweep."""


@frozen
class PermitRequest:
    """An attempt that asks, under the fence of its claim, to run as one of `at_once` under a name; `on_full` says what follows a refusal."""

    key: str
    fence: int
    step: str
    name: str
    at_once: int
    on_full: OnFull = "queue"
    claim_id: str | None = None

    @property
    def run(self) -> str:
        return AttemptKey.parse(self.key).run

    @property
    def waits_for(self) -> str:
        return f"limit {self.name}"

    @property
    def replacement(self) -> str:
        """Return why a run is cancelled to make room for this attempt."""
        return f"replaced by run {self.run} (limit '{self.name}')"

    def waiting(self, in_use: int) -> Event:
        data = {"step": self.step, "limit": self.name, "at_once": self.at_once, "in_use": in_use}
        return Event("flujo.limit.waiting", data)
