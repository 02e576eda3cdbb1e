"""Messages before Celery carries them out: checked, refused and counted, or left in the queue for a while."""
