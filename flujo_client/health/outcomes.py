"""How runs ended, in the report: figures, and from when on they are a reason for attention. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from flujo_client.health.report import EndedRuns, Reason, RunOutcomes

if TYPE_CHECKING:
    from flujo_client.config.models import Health
    from flujo_client.health.facts import EndCount

NAMED: Final = 10
FEWEST_BEFORE: Final = 20
"""Of fewer runs that ended before the window, no rise is derived."""
LEAST_RISE: Final = 0.01
"""A share of failures below this is no rise, even if there were none before."""


def outcomes_of(ended: Sequence[EndCount], baseline_hours: float | None) -> RunOutcomes:
    """Sum up how runs ended; `baseline_hours` is None where there is nothing to compare with."""
    in_window = [each for each in ended if each.part == "window"]
    by_pipeline = defaultdict[str, list["EndCount"]](list)
    for each in in_window:
        by_pipeline[each.pipeline].append(each)
    pipelines = {name: _outcomes(counts) for name, counts in by_pipeline.items()}
    worst_first = sorted(pipelines.items(), key=lambda item: (-item[1].unsuccessful, item[0]))
    before = None if baseline_hours is None else _outcomes(each for each in ended if each.part == "baseline")
    return RunOutcomes(
        window=_outcomes(in_window), baseline=before, baseline_hours=baseline_hours, pipelines=dict(worst_first)
    )


def _outcomes(ended: Iterable[EndCount]) -> EndedRuns:
    counts, retried = Counter[str](), 0
    for each in ended:
        counts[each.status] += each.runs - each.retried
        retried += each.retried
    total, unsuccessful = counts.total(), counts["failed"] + counts["expired"]
    rate = round(unsuccessful / total, 4) if total else None
    return EndedRuns(
        ended=total, retried=retried, failure_rate=rate, **{status: counts[status] for status in _STATUSES}
    )


_STATUSES: Final = ("succeeded", "failed", "expired", "cancelled")


def failures(outcomes: RunOutcomes, health: Health) -> Iterator[Reason]:
    """Yield the reasons: too large a share of the runs failed, of all or of one pipeline; or a much larger one than before."""
    window, before = outcomes.window, outcomes.baseline
    failing = [name for name, each in outcomes.pipelines.items() if _is_high(each, health)]
    if failing or _is_high(window, health):
        named = failing or [name for name, each in outcomes.pipelines.items() if each.unsuccessful]
        yield Reason(code="failure_rate", message=_message(window), named=_named(outcomes, named))
    elif before is not None and _has_risen(window, before, health):
        message = f"{_message(window)}; before, {before.failure_rate or 0.0:.1%} did"
        named = [name for name, each in outcomes.pipelines.items() if each.unsuccessful]
        yield Reason(code="failure_rise", message=message, named=_named(outcomes, named))


def _is_high(each: EndedRuns, health: Health) -> bool:
    return each.unsuccessful >= health.failed_runs and (each.failure_rate or 0.0) >= health.failure_rate


def _has_risen(window: EndedRuns, before: EndedRuns, health: Health) -> bool:
    if window.unsuccessful < health.failed_runs or before.ended < FEWEST_BEFORE:
        return False
    return (window.failure_rate or 0.0) >= max((before.failure_rate or 0.0) * health.failure_rise, LEAST_RISE)


def _message(window: EndedRuns) -> str:
    return f"{window.unsuccessful:,} of {window.ended:,} runs that ended failed or expired ({window.failure_rate or 0.0:.1%})"


def _named(outcomes: RunOutcomes, names: Sequence[str]) -> tuple[str, ...]:
    of = outcomes.pipelines
    return tuple(f"{name}: {of[name].unsuccessful:,} of {of[name].ended:,}" for name in names[:NAMED])
