"""The queries of `flujo doctor`."""

from __future__ import annotations

from flujo_client.contract.deployment import BrokerFacts, DatabaseFacts
from flujo_client.gateway.effects import DescribeBroker, Operation
from flujo_client.gateway.requests import Request, Row


def database_facts() -> Request[DatabaseFacts]:
    """Read the database's facts about itself and its load."""
    return Request("deployment", {}, lambda rows: _database(rows[0]))


def broker_facts() -> Operation[BrokerFacts]:
    """Ask Redis for its facts; raises ServiceUnreachable."""
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
        models=tuple(row["models"]),
    )
