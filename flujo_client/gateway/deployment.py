"""What `flujo doctor` asks of Postgres and Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flujo_client.contract.deployment import DatabaseFacts, ParkedPipeline
from flujo_client.gateway.effects import DescribeBroker
from flujo_client.gateway.requests import Request

if TYPE_CHECKING:
    from flujo_client.contract.deployment import BrokerFacts
    from flujo_client.gateway.effects import Operation
    from flujo_client.gateway.requests import Row


def database_facts() -> Request[DatabaseFacts]:
    """Read what the database says of itself and of the work in it."""
    return Request("deployment", {}, lambda rows: _database(rows[0]))


def broker_facts() -> Operation[BrokerFacts]:
    """Ask Redis what it says of itself; raises ServiceUnreachable."""
    facts: BrokerFacts = yield DescribeBroker()
    return facts


def _database(row: Row) -> DatabaseFacts:
    return DatabaseFacts(
        version=row["version"].partition(" ")[0],
        clock=row["clock"],
        connections=row["connections"],
        max_connections=row["max_connections"],
        not_granted=tuple(row["not_granted"]),
        waiting=tuple((queue, count) for queue, count in row["waiting"]),
        parked=tuple(ParkedPipeline(*each) for each in row["parked"]),
        models=tuple(row["models"]),
    )
