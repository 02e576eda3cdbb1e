"""The Celery app, its tasks and its consumer: all code that depends on the internals of Celery and kombu."""
