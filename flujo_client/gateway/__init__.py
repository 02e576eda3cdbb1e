"""How the client crosses: Celery by task name, Postgres by SQL files."""
