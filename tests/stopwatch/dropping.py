"""Runs of steps that use the ORM, and what drops their connections. In the shop: `python manage.py shell -c "…play()"`, beside a worker."""

import json

from django.db import connection

from flujo_client import FlujoClient, Pipeline, Step, current_attempt

from .models import Event, Order

DROP = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND query ILIKE '%orders_event%' AND pid <> pg_backend_pid()
"""


def execute(statement):
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()


def record(order_id):
    Event.objects.create(order_id=order_id, what="recorded")
    return order_id


def record_twice(order_id):
    record(order_id)
    if current_attempt().number == 1:
        execute("SELECT pg_terminate_backend(pg_backend_pid())")
    return record(order_id)


calm = Pipeline([Step("first", record), Step("second", record)])
hit = Pipeline([Step("first", record_twice), Step("second", record)])


def play():
    """Enqueue five times six runs, one of which loses its connection within a step; drop the connections between steps after each six."""
    order, runs, dropped = Order.objects.create(item="book"), [], []
    with FlujoClient() as client:
        for _ in range(5):
            six = [client.enqueue(f"orders.dropping:{name}", order.pk) for name in ("hit", *["calm"] * 5)]
            results = [run.result(timeout=60) for run in six]
            runs += [(each.run_status, [(step.name, step.attempts) for step in each.step_history]) for each in results]
            dropped.append(len(execute(DROP)))
    print(json.dumps({"runs": runs, "dropped": dropped}))
