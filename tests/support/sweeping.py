"""Build a sweeper with the chores of a worker's: it recovers lost work and parked runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flujo_client.config.manager import Settings
from flujo_client.config.models import Worker
from flujo_worker.changed_code.code_changes import CodeChanges
from flujo_worker.changed_code.code_registry import CodeRegistry
from flujo_worker.coordinator.coordinator import Coordinator
from flujo_worker.recovery.lost_work import UNPARK_EVERY_S, LostWork, ParkedRuns
from flujo_worker.recovery.sweeper import Chore, Sweeper


@dataclass(frozen=True)
class Standing:
    """The part of a lease that a sweep reads: the worker's id, and whether it may declare others dead."""

    worker: str = "w"
    may_judge: bool = True

    def judge(self) -> str | None:
        return self.worker if self.may_judge else None


def sweeper_of(
    stores: Any,
    post: Any,
    coordinator: Coordinator,
    catalog: CodeRegistry,
    *,
    lease: Any = Standing(),
    changes: CodeChanges | None = None,
    max_lost: int = 3,
    every_s: float = 1.0,
    unpark_every_s: float = UNPARK_EVERY_S,
) -> Sweeper:
    """Return a sweeper that has not been started."""
    lost = LostWork(stores, post, coordinator, lease, Settings(worker=Worker(max_lost=max_lost)))
    parked = ParkedRuns(stores, coordinator, lease, catalog, changes=changes)
    return Sweeper(stores, lease, [Chore(parked.unpark, unpark_every_s), *lost.chores()], every_s=every_s)
