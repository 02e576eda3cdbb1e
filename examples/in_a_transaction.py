"""A run that exists if and only if your own transaction commits."""

from typing import Any

import psycopg

from flujo_client import FlujoClient, RunHandle


def place_order(client: FlujoClient, connection: psycopg.Connection[Any], customer: str) -> RunHandle:
    with connection.transaction():
        connection.execute("INSERT INTO orders (customer) VALUES (%s)", [customer])
        run = client.enqueue("examples.greeting:pipeline", customer, connection=connection)
    run.publish()
    return run
