"""`make bench`: ours beside bare Celery, in one run, on the same broker, with as many processes."""
