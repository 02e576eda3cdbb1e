"""How the client reaches the workers: Celery by task name, Postgres by SQL files."""
