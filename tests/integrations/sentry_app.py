"""The module that `celery -A` is given."""

from sentry_shop import attached

app = attached()
