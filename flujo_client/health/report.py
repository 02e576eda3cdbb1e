"""The report of a health check, as values, and as text for other programs. Its JSON is a contract with them: keys may be added, none changes.

`build` in `aggregate.py` makes it; the text, the tables and the reports of the scheduled task are made only from it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import PurePath
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict

VERSION: Final = "1"

StageCounts = Mapping[str, int]
Age = Annotated[float, AfterValidator(lambda seconds: round(max(seconds, 0.0), 1))]
"""Seconds, to the tenth; at least zero, as clocks may differ."""
STAGES: Final = ("extract", "syntactic", "tolerant", "semantic", "custom")
_STARTS_A_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


class Value(BaseModel):
    model_config = ConfigDict(frozen=True)


class Figures(Value):
    """The work of AROS at one place: attempts, changes and rejections, separately.

    Attributes:
        attempts: those in which AROS reported anything.
        coercions: stages that changed something.
        runs: the examined ones; of a step, a model or an agent, those of the pipelines in which it occurs.
        per_100_runs: coercions for each 100 of them.
        refused: outputs that could not be read.
        soe_applied: requests that asked for structured output.
        soe_skipped: requests that did not, by `soe_skip_reasons`.
        precheck_failure_rate: failed of those that passed or failed; None where there was neither.
        cut: answers that the provider stopped at the token limit.
        grammar_refused: texts that `enforce_grammar` rejected.
    """

    runs: int = 0
    attempts: int = 0
    coercions: int = 0
    per_100_runs: float = 0.0
    refused: int = 0
    soe_applied: int = 0
    soe_skipped: int = 0
    soe_skip_reasons: Mapping[str, int] = {}
    precheck_total: int = 0
    precheck_passed: int = 0
    precheck_failed: int = 0
    precheck_skipped: int = 0
    precheck_failure_rate: float | None = None
    cut: int = 0
    grammar_refused: int = 0


class Shadow(Value):
    """The changes that shadow mode would have made."""

    coercions: int = 0
    refused: int = 0
    grammar_refused: int = 0
    stages: StageCounts = {}


class WindowPart(Value):
    """One part of the window, from `start` to before `end`; the last part holds its end too."""

    start: datetime
    end: datetime
    runs: int = 0
    coercions: int = 0
    per_100_runs: float = 0.0
    stages: StageCounts = {}
    steps: Mapping[str, int] = {}
    models: Mapping[str, int] = {}
    step_stages: Mapping[str, StageCounts] = {}
    model_stages: Mapping[str, StageCounts] = {}


class Bucket(WindowPart):
    index: int


class Trend(Value):
    """None and empty where no window was asked for."""

    last_half: WindowPart | None = None
    prev_half: WindowPart | None = None
    buckets: tuple[Bucket, ...] = ()


class Window(Value):
    """The examined runs: `limit` is their maximum, `since` None without a window."""

    since: datetime | None = None
    until: datetime
    hours: float | None = None
    limit: int | None = None
    filters: Mapping[str, str] = {}


class Advice(Value):
    """A threshold that was reached, and what to do about it.

    Attributes:
        code: which one; `docs/reference/health-check.md` lists them.
        about: the step or the model, where it is about one.
        value: what was counted.
        threshold: from what count on it is reported.
    """

    code: str
    about: str | None = None
    value: int
    threshold: int
    message: str


class EndedRuns(Value):
    """How runs ended that were not retried; `retried` counts the others, whose newest retry counts for them.

    Attributes:
        ended: all that are counted here.
        failure_rate: the part that failed or expired; None where none ended.
    """

    ended: int = 0
    succeeded: int = 0
    failed: int = 0
    expired: int = 0
    cancelled: int = 0
    retried: int = 0
    failure_rate: float | None = None

    @property
    def unsuccessful(self) -> int:
        return self.failed + self.expired


class RunOutcomes(Value):
    """How runs ended in the window, of all pipelines and of each, the one with the most failures first; child runs are left out.

    Attributes:
        baseline: how they ended in the `baseline_hours` before it; None where a limit takes the place of a window.
    """

    window: EndedRuns = EndedRuns()
    baseline: EndedRuns | None = None
    baseline_hours: float | None = None
    pipelines: Mapping[str, EndedRuns] = {}


class Fact(Value):
    """Things of one kind that the machine should not have: how many, the oldest's age, and up to ten by name."""

    count: int = 0
    oldest_s: Age | None = None
    named: tuple[str, ...] = ()


class Queue(Value):
    """`waiting` is what Postgres knows could begin, `messages` what is in Redis; None when Redis did not answer."""

    waiting: int = 0
    messages: int | None = None


class Machine(Value):
    stuck_runs: Fact = Fact()
    parked_runs: Fact = Fact()
    pinned_runs: Fact = Fact()
    orphans: Fact = Fact()
    waiting: Fact = Fact()
    dead_workers: Fact = Fact()
    reservation_leaks: Fact = Fact()
    owed_hooks: Fact = Fact()
    open_breakers: Fact = Fact()
    queues: Mapping[str, Queue] = {}
    broker_error: str | None = None
    live_workers: int = 0
    sweep_age_s: Age | None = None
    sweep_lag_s: Age | None = None
    events_dropped: int = 0
    refused_messages: Mapping[str, int] = {}
    refused_age_s: Age | None = None


class Reason(Value):
    """One thing that is wrong. `named` are pipelines, runs, attempts, models or workers to look at."""

    code: str
    message: str
    named: tuple[str, ...] = ()


class Verdict(Value):
    """Of runs and the machine. Interventions of AROS are advice, and not a reason for an alert."""

    status: Literal["ok", "warn"] = "ok"
    reasons: tuple[Reason, ...] = ()


class HealthReport(Value):
    version: str = VERSION
    generated_at: datetime
    window: Window
    verdict: Verdict = Verdict()
    outcomes: RunOutcomes = RunOutcomes()
    machine: Machine = Machine()
    totals: Figures = Figures()
    stages: StageCounts = {}
    pipelines: Mapping[str, Figures] = {}
    steps: Mapping[str, Figures] = {}
    models: Mapping[str, Figures] = {}
    agents: Mapping[str, Figures] = {}
    step_stages: Mapping[str, StageCounts] = {}
    model_stages: Mapping[str, StageCounts] = {}
    transforms: Mapping[str, int] = {}
    shadow: Shadow = Shadow()
    trend: Trend = Trend()
    recommendations: tuple[Advice, ...] = ()
    notes: tuple[str, ...] = ()


_FIGURES: Final = tuple(name for name in Figures.model_fields if name != "soe_skip_reasons")


def to_json(report: HealthReport) -> str:
    """Write the report as one JSON document."""
    return report.model_dump_json(indent=2)


def to_csv(report: HealthReport, path: str) -> dict[str, str]:
    """Make the report's tables: the files next to `path` (`x_steps.csv`, `x_models.csv` and `x_transforms.csv` for `x.csv`) and their text.

    A cell that a spreadsheet would read as a formula gets an apostrophe in front: users choose the names of steps, models and transforms.
    """
    columns = (*_FIGURES, *STAGES)
    tables = {
        "steps": _table(("step", *columns), _rows(report.steps, report.step_stages)),
        "models": _table(("model", *columns), _rows(report.models, report.model_stages)),
        "transforms": _table(("transform", "attempts"), report.transforms.items()),
    }
    stem = PurePath(path).with_suffix("") if PurePath(path).suffix in (".csv", ".json") else PurePath(path)
    return {f"{stem}_{name}.csv": text for name, text in tables.items()}


def _rows(places: Mapping[str, Figures], stages: Mapping[str, StageCounts]) -> Iterable[tuple[Any, ...]]:
    for name, figures in places.items():
        acted = stages.get(name, {})
        yield (name, *(getattr(figures, column) for column in _FIGURES), *(acted.get(stage, 0) for stage in STAGES))


def _table(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_safe(cell) for cell in row] for row in rows)
    return file.getvalue()


def _safe(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_STARTS_A_FORMULA) else cell
