"""The Celery app, its tasks and its consumer: everything that knows Celery's and kombu's insides."""
