"""The fleet's settings of circuit breakers and rate limits on Postgres."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flujo_client.contract.limits import GuardRow
from flujo_client.serial import stored_safely
from flujo_worker.store.postgres.pool import RetryingPool
from flujo_worker.store.postgres.statements import CLIENT, execute

if TYPE_CHECKING:
    from collections.abc import Sequence


class ModelGuardsInPostgres(RetryingPool):
    """The port `ModelGuards`."""

    def guard_rows(self) -> list[GuardRow]:
        rows = self._with_retry(lambda connection: execute(connection, "guard_rows", {}, home=CLIENT).fetchall())
        return [GuardRow.of(row) for row in rows]

    def write_file_settings(self, rows: Sequence[GuardRow]) -> None:
        parameters = {
            "guards": [row.guard for row in rows],
            "models": [row.model for row in rows],
            "settings": [stored_safely(dict(row.from_file or {})) for row in rows],
        }
        self._do("write_file_settings", parameters)
