"""Flujo Worker beside each Celery that it supports: `make compat`, and `make compat-lowest` for the oldest.

Each row of `rows.py` has an environment of its own. In it run the contract tests and `test_matrix.py`, with the pytest of that environment.
"""

POSTGRES = "COMPAT_POSTGRES"
"""The environment variable that names the folder of the programs of the Postgres to run."""

SENT_AGAIN = """
SELECT a.run_id, a.key, e.data FROM flujo_events e JOIN flujo_attempts a ON a.key = e.attempt
WHERE e.name = 'attempt.sent_again' OR (e.name = 'join.rung' AND e.data ->> 'by' <> 'chord')
"""
"""Messages that a sweep had to send, because the first ones were lost or came too late."""
