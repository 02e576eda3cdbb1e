# What the team has added

import os
import sys

import sentry_sdk
from sentry_sdk.integrations.celery import CeleryIntegration
from sentry_sdk.integrations.django import DjangoIntegration

INSTALLED_APPS += ["orders"]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ["DB_NAME"],
        "USER": os.environ["DB_USER"],
        "HOST": os.environ["DB_HOST"],
        "PORT": os.environ["DB_PORT"],
        "CONN_MAX_AGE": 600,
    }
}

CELERY_BROKER_URL = os.environ["REDIS_URL"]
CELERY_RESULT_BACKEND = os.environ["REDIS_URL"]
CELERY_TASK_TIME_LIMIT = 300
CELERY_TASK_ALWAYS_EAGER = "test" in sys.argv
CELERY_BEAT_SCHEDULE = {"count orders": {"task": "orders.tasks.count_orders", "schedule": 1.0}}

PAYMENTS_URL = os.environ["PAYMENTS_URL"]

sentry_sdk.init(
    dsn=os.environ["SENTRY_DSN"],
    integrations=[CeleryIntegration(), DjangoIntegration()],
    auto_enabling_integrations=False,
)
