"""A run that exists if and only if Django's transaction commits, and is published when it does."""

from django.db import connection, transaction

from flujo_client import FlujoClient, RunHandle


def place_order(client: FlujoClient, customer: str) -> RunHandle:
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO orders (customer) VALUES (%s)", [customer])
        run = client.enqueue("examples.greeting:pipeline", customer, connection=connection)
        transaction.on_commit(run.publish)
    return run
