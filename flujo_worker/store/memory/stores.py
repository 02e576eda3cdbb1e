"""The stores in memory: the same promises as Postgres, under the same conformance suite.

For tests and the in-process engine. One lock makes each act one commit. Their clock is passed in, so time can be moved.
"""

from __future__ import annotations

from flujo_worker.ports import Stores
from flujo_worker.store.memory.admission import AdmissionInMemory
from flujo_worker.store.memory.attempts import AttemptsInMemory
from flujo_worker.store.memory.backlog import BacklogInMemory
from flujo_worker.store.memory.blobs import BlobsInMemory
from flujo_worker.store.memory.budgets import BudgetsInMemory
from flujo_worker.store.memory.client import ClientInMemory
from flujo_worker.store.memory.code import CodeInMemory, PlanMovesInMemory
from flujo_worker.store.memory.exports import ExportsInMemory
from flujo_worker.store.memory.hook_calls import HookCallsInMemory
from flujo_worker.store.memory.leases import LeasesInMemory
from flujo_worker.store.memory.limits import LimitsInMemory
from flujo_worker.store.memory.reads import ReadsInMemory
from flujo_worker.store.memory.retention import RetentionInMemory
from flujo_worker.store.memory.schedules import SchedulesInMemory
from flujo_worker.store.memory.scopes import ScopesInMemory
from flujo_worker.store.memory.tables import Tables
from flujo_worker.store.memory.units import BatchesInMemory, UnitsInMemory


class MemoryStores(Stores):
    """Everything Postgres would remember, in dictionaries.

    Args:
        tables: the rows, which begin empty.
    """

    def __init__(self, tables: Tables) -> None:
        self.tables, admission = tables, AdmissionInMemory(tables)
        scopes, budgets, code = ScopesInMemory(tables), BudgetsInMemory(tables), CodeInMemory(tables)
        attempts = AttemptsInMemory(tables, budgets, scopes)
        limits = LimitsInMemory(tables, attempts)
        self.client, self.reads = ClientInMemory(tables, admission), ReadsInMemory(tables, admission)
        super().__init__(
            leases=LeasesInMemory(tables, limits, scopes),
            attempts=attempts,
            scopes=scopes,
            backlog=BacklogInMemory(tables, budgets),
            blobs=BlobsInMemory(tables),
            records=self.reads,
            code=code,
            plan_moves=PlanMovesInMemory(tables, code),
            hook_calls=HookCallsInMemory(tables),
            admission=admission,
            limits=limits,
            retention=RetentionInMemory(tables),
            units=UnitsInMemory(tables, budgets),
            exports=ExportsInMemory(tables),
            batches=BatchesInMemory(tables),
            schedules=SchedulesInMemory(tables),
        )
