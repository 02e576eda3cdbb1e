"""The health check's part of the store: facts from one snapshot, and the report of each slot of time stored once.

It reads rows without locks, and decides nothing.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import psycopg

from flujo_client.health.facts import LONGEST_S, HealthQuery, read_aros, read_machine
from flujo_worker.errors import StoreError
from flujo_worker.store.postgres.pool import InPostgres
from flujo_worker.store.postgres.statements import Connection, execute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from flujo_client.health.facts import ArosFacts, MachineFacts
    from flujo_client.health.report import HealthReport

_HOME: Final = "flujo_client.health"


class HealthInPostgres(InPostgres):
    """The queries of the scheduled health check."""

    def report_once(
        self,
        aros: Mapping[str, Any],
        machine: Mapping[str, Any],
        make: Callable[[ArosFacts, MachineFacts], HealthReport],
        *,
        every_s: float,
        keep: int,
    ) -> HealthReport | None:
        """Read the facts, have a report made of them, and store it; None when this slot has its report, or it is being made.

        `aros` and `machine` are the parameters of `aros.sql` and `machine.sql`. A slot is `every_s` seconds long, and `keep` reports are retained.
        Raises StoreError: a statement took longer than `LONGEST_S`.
        """

        def once(connection: Connection) -> HealthReport | None:
            with _bounded(), connection.transaction():
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                execute(connection, "bounds", HealthQuery.bounds(), home=_HOME)
                slot = execute(connection, "begin_health_check", {"every_s": every_s}).fetchone()
                if slot is None:
                    return None
                facts, found = (
                    execute(connection, name, parameters, home=_HOME).fetchall()[0]
                    for name, parameters in (("aros", aros), ("machine", machine))
                )
                report = make(read_aros(facts), read_machine(found))
                row = {"slot": slot["slot"], "report": report.model_dump_json(), "keep": keep}
                execute(connection, "store_report", row)
                return report

        return self._pool.with_retry(once)


@contextmanager
def _bounded() -> Iterator[None]:
    """Do not retry a statement that Postgres cancelled for its duration: Postgres is not away then."""
    try:
        yield
    except psycopg.errors.QueryCanceled as error:
        raise StoreError(
            f"the health check took longer than {LONGEST_S:g} s",
            suggestion="set health.window_hours or health.limit to look at fewer runs",
            cause=error,
        ) from error
