"""The stores on Postgres: they bind statements and map rows, and decide nothing.

Every operation is one statement and one transaction, except winding down, and merges of outcomes with repairs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flujo_worker.ports import Stores
from flujo_worker.store.postgres.admission import AdmissionInPostgres
from flujo_worker.store.postgres.attempts import AttemptsInPostgres
from flujo_worker.store.postgres.backlog import BacklogInPostgres
from flujo_worker.store.postgres.blobs import BlobsInPostgres
from flujo_worker.store.postgres.code import CodeInPostgres, PlanMovesInPostgres
from flujo_worker.store.postgres.exports import ExportsInPostgres
from flujo_worker.store.postgres.hook_calls import HookCallsInPostgres
from flujo_worker.store.postgres.leases import LeasesInPostgres
from flujo_worker.store.postgres.limits import LimitsInPostgres
from flujo_worker.store.postgres.pool import RetryingPool
from flujo_worker.store.postgres.records import RecordsInPostgres
from flujo_worker.store.postgres.retention import RetentionInPostgres
from flujo_worker.store.postgres.schedules import SchedulesInPostgres
from flujo_worker.store.postgres.scopes import ScopesInPostgres
from flujo_worker.store.postgres.units import BatchesInPostgres, UnitsInPostgres

if TYPE_CHECKING:
    from threading import Event as Flag
    from typing import Self


class PostgresStores(Stores):
    """The worker's stores on Postgres.

    Args:
        url: a libpq connection string.
        pool_max: connections this process may hold.
        prepare: whether statements may be prepared, on connections with their own session.
        stopping: set when the process ends, so that nothing waits for Postgres any longer.
    """

    def __init__(self, url: str, *, pool_max: int = 10, prepare: bool = True, stopping: Flag | None = None) -> None:
        self.pool = pool = RetryingPool(url, pool_max=pool_max, prepare=prepare, stopping=stopping)
        scopes = ScopesInPostgres(pool)
        super().__init__(
            leases=LeasesInPostgres(pool),
            attempts=AttemptsInPostgres(pool, scopes),
            scopes=scopes,
            backlog=BacklogInPostgres(pool),
            blobs=BlobsInPostgres(pool),
            records=RecordsInPostgres(pool),
            code=CodeInPostgres(pool),
            plan_moves=PlanMovesInPostgres(pool),
            hook_calls=HookCallsInPostgres(pool),
            admission=AdmissionInPostgres(pool),
            limits=LimitsInPostgres(pool),
            retention=RetentionInPostgres(pool),
            units=UnitsInPostgres(pool),
            exports=ExportsInPostgres(pool),
            batches=BatchesInPostgres(pool),
            schedules=SchedulesInPostgres(pool),
        )

    def open(self) -> Self:
        """Open the pool; connections are made as they are needed."""
        self.pool.open()
        return self

    def close(self) -> None:
        self.pool.close()
