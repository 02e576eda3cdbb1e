"""The module that `celery -A` is given."""

from monitored_shop import attached

app = attached()
