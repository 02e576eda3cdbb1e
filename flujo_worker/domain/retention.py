"""The retention of runs. Pure."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from flujo_client.config.models import Retention, RunRetention

DAY_S: Final = 86_400.0
STATUSES: Final = ("succeeded", "failed", "cancelled", "expired")


class RetentionRule(NamedTuple):
    """The retention of runs with a status."""

    status: str
    older_s: float | None
    """Seconds since their end after which they are deleted; None retains them forever."""
    pipeline: str | None = None
    """The name of its pipeline; None: every pipeline without its own rule for that status."""


def retention_rules(settings: Retention) -> list[RetentionRule]:
    """Return the rules of these settings; none if every run is retained forever."""
    rules = [*_rules(settings, None)]
    for pipeline, own in settings.pipeline.items():
        rules += _rules(own, pipeline)
    return rules if any(rule.older_s is not None for rule in rules) else []


def _rules(settings: Retention | RunRetention, pipeline: str | None) -> Iterator[RetentionRule]:
    for status in STATUSES:
        days = getattr(settings, f"{status}_days")
        if days is not None:
            yield RetentionRule(status, days * DAY_S or None, pipeline)
