"""The one aggregator: what was counted in, the report out. Pure.

Nothing is sampled or estimated: each figure is a sum of the counters of `facts.py`.
"""

from __future__ import annotations

from collections import Counter as Sums
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter

from flujo_client.config.models import Health
from flujo_client.health.advice import advise
from flujo_client.health.facts import ArosFacts, Counter, Depths, HealthQuery, MachineFacts, RunCount
from flujo_client.health.report import STAGES, Bucket, Figures, HealthReport, Shadow, Trend, Window, WindowPart
from flujo_client.health.verdict import judge, machine_of, outcomes_of

_STAGE, _SHADOW_STAGE = "aros.coercion.stage.", "aros.shadow.coercion.stage."
_SKIPPED, _TRANSFORM = "aros.soe.skipped.", "aros.coercion.transforms."

BY_STEP, BY_MODEL, BY_AGENT = attrgetter("step"), attrgetter("model"), attrgetter("agent")


def build(
    question: HealthQuery, aros: ArosFacts, machine: MachineFacts, depths: Depths, health: Health
) -> HealthReport:
    """Make the report of what was examined: what AROS counted, and what Postgres and Redis hold; `health` says from when on it is bad."""
    counters, runs = aros.counters, sum(each.runs for each in aros.runs)
    sums = _sums(counters)
    facts = machine_of(machine, depths)
    outcomes = outcomes_of(machine.ended, None if question.hours is None else health.baseline_hours)
    limit, filters = question.limit, question.filters()
    window = Window(since=aros.since, until=aros.at, hours=question.hours, limit=limit, filters=filters)
    report = HealthReport(
        generated_at=aros.at,
        window=window,
        verdict=judge(outcomes, facts, health, question.hours),
        outcomes=outcomes,
        machine=facts,
        totals=_figures(sums, runs),
        stages=_stages(sums, _STAGE),
        pipelines=_pipelines(aros),
        steps=figures_by(aros, BY_STEP),
        models=figures_by(aros, BY_MODEL),
        agents=figures_by(aros, BY_AGENT),
        step_stages=stages_by(counters, BY_STEP),
        model_stages=stages_by(counters, BY_MODEL),
        transforms=_ranked(_after(sums, _TRANSFORM)),
        shadow=_shadow(sums),
        trend=_trend(question, aros),
        notes=(*question.notes(), *_nothing(question, runs)),
    )
    return report.model_copy(update={"recommendations": tuple(advise(report))})


def figures_by(aros: ArosFacts, key: Callable[[Counter], str | None]) -> dict[str, Figures]:
    """Return the figures of each step, model or agent, the one with the most coercions first."""
    runs, occurs = _runs_by_pipeline(aros), defaultdict(set)
    for each in aros.counters:
        occurs[key(each)].add(each.pipeline)
    sums = _groups(aros.counters, key)
    return _worst_first({name: _figures(of, sum(runs[each] for each in occurs[name])) for name, of in sums.items()})


def stages_by(counters: Iterable[Counter], key: Callable[[Counter], str | None]) -> dict[str, dict[str, int]]:
    """Return the stages that acted at each step or model."""
    found = {name: _stages(sums, _STAGE) for name, sums in _groups(counters, key).items()}
    acted = ((name, stages) for name, stages in found.items() if stages)
    return dict(sorted(acted, key=lambda item: (-sum(item[1].values()), item[0])))


def _groups(counters: Iterable[Counter], key: Callable[[Counter], str | None]) -> dict[str, Sums[str]]:
    groups: dict[str, Sums[str]] = defaultdict(Sums)
    for each in counters:
        if (name := key(each)) is not None:
            groups[name][each.name] += each.number
    return groups


def _sums(counters: Iterable[Counter]) -> Sums[str]:
    return _groups(counters, lambda _: "").get("", Sums())


def _figures(sums: Mapping[str, int], runs: int) -> Figures:
    passed, failed = sums.get("aros.precheck.pass", 0), sums.get("aros.precheck.fail", 0)
    coercions = sums.get("aros.coercion.total", 0)
    return Figures(
        runs=runs,
        attempts=sums.get("attempts", 0),
        coercions=coercions,
        per_100_runs=_per_100(coercions, runs),
        refused=sums.get("aros.coercion.failed", 0),
        soe_applied=sums.get("aros.soe.count", 0),
        soe_skipped=sums.get("aros.soe.skipped", 0),
        soe_skip_reasons=_ranked(_after(sums, _SKIPPED)),
        precheck_total=sums.get("aros.precheck.total", 0),
        precheck_passed=passed,
        precheck_failed=failed,
        precheck_skipped=sums.get("aros.precheck.skipped", 0),
        precheck_failure_rate=round(failed / (passed + failed), 4) if passed + failed else None,
        cut=sums.get("aros.cut", 0),
        grammar_refused=sums.get("aros.grammar.failed", 0),
    )


def _pipelines(aros: ArosFacts) -> dict[str, Figures]:
    sums = _groups(aros.counters, attrgetter("pipeline"))
    return _worst_first({name: _figures(sums.get(name, {}), runs) for name, runs in _runs_by_pipeline(aros).items()})


def _runs_by_pipeline(aros: ArosFacts) -> Sums[str]:
    runs: Sums[str] = Sums()
    for each in aros.runs:
        runs[each.pipeline] += each.runs
    return runs


def _worst_first(figures: Mapping[str, Figures]) -> dict[str, Figures]:
    return dict(sorted(figures.items(), key=lambda item: (-item[1].coercions, -item[1].attempts, item[0])))


def _shadow(sums: Mapping[str, int]) -> Shadow:
    return Shadow(
        coercions=sums.get("aros.shadow.coercion.total", 0),
        refused=sums.get("aros.shadow.coercion.failed", 0),
        grammar_refused=sums.get("aros.shadow.grammar.failed", 0),
        stages=_stages(sums, _SHADOW_STAGE),
    )


def _trend(question: HealthQuery, aros: ArosFacts) -> Trend:
    if aros.since is None:
        return Trend()
    prev_half, last_half = (_part(aros, aros.since, attrgetter("half"), index, 2) for index in range(2))
    count = question.parts or 0
    buckets = [_part(aros, aros.since, attrgetter("bucket"), index, count) for index in range(count)]
    numbered = tuple(Bucket(index=index, **dict(part)) for index, part in enumerate(buckets))
    return Trend(last_half=last_half, prev_half=prev_half, buckets=numbered)


def _part(
    aros: ArosFacts, since: datetime, place: Callable[[Counter | RunCount], int | None], index: int, count: int
) -> WindowPart:
    counters: Sequence[Counter] = [each for each in aros.counters if place(each) == index]
    runs = sum(each.runs for each in aros.runs if place(each) == index)
    sums, width = _sums(counters), aros.at - since
    coercions = sums["aros.coercion.total"]
    return WindowPart(
        start=since + width * index / count,
        end=since + width * (index + 1) / count,
        runs=runs,
        coercions=coercions,
        per_100_runs=_per_100(coercions, runs),
        stages=_stages(sums, _STAGE),
        steps=_coercions_by(counters, BY_STEP),
        models=_coercions_by(counters, BY_MODEL),
        step_stages=stages_by(counters, BY_STEP),
        model_stages=stages_by(counters, BY_MODEL),
    )


def _coercions_by(counters: Iterable[Counter], key: Callable[[Counter], str | None]) -> dict[str, int]:
    return _ranked({name: sums["aros.coercion.total"] for name, sums in _groups(counters, key).items()})


def _per_100(count: int, runs: int) -> float:
    return round(100 * count / runs, 2) if runs else 0.0


def _stages(sums: Mapping[str, int], prefix: str) -> dict[str, int]:
    found = _after(sums, prefix)
    return {stage: found[stage] for stage in (*STAGES, *sorted(found.keys() - set(STAGES))) if found.get(stage)}


def _after(sums: Mapping[str, int], prefix: str) -> dict[str, int]:
    return {name.removeprefix(prefix): number for name, number in sums.items() if name.startswith(prefix)}


def _ranked(counts: Mapping[str, int]) -> dict[str, int]:
    """Sort the counts, the greatest first; leave out zeros."""
    return dict(sorted(((name, each) for name, each in counts.items() if each), key=lambda item: (-item[1], item[0])))


def _nothing(question: HealthQuery, runs: int) -> list[str]:
    if runs:
        return []
    filtered = " that fits the filters" if question.pipeline is not None else ""
    when = f" in the last {question.hours:g} hours" if question.hours is not None else " yet"
    return [f"there is nothing to report: no run{filtered} has begun{when}"]
