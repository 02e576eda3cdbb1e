"""Many runs at once: one commit and one push for up to a thousand."""

from collections.abc import Iterable, Mapping
from typing import Any

import psycopg

from flujo_client import FlujoClient, RunHandle, RunRequest


def greet_all(client: FlujoClient, names: Iterable[str]) -> list[RunHandle]:
    return client.enqueue_many("examples.greeting:pipeline", names, queue="bulk", priority=9)


def greet_each_once(client: FlujoClient, guests: Mapping[str, str]) -> int:
    requests = [RunRequest(name, idempotency_key=guest) for guest, name in guests.items()]
    return sum(run.is_new for run in client.enqueue_many("examples.greeting:pipeline", requests))


def greet_all_or_nobody(client: FlujoClient, connection: psycopg.Connection[Any], names: Iterable[str]) -> None:
    with connection.transaction():
        runs = client.enqueue_many("examples.greeting:pipeline", names, connection=connection)
    client.publish(runs)
