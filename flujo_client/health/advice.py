"""Advice on what to change. Pure: a report in, advice out. Each rule is one function that reports from its threshold on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from flujo_client.health.report import Advice, Figures, HealthReport, StageCounts, WindowPart

SOE_COERCIONS: Final = 10
DECODER_USES: Final = 5
STAGE_TOTAL: Final = 5
TOP_COERCIONS: Final = 5
TOP_STAGE: Final = 3
RISE: Final = 2
DRIFT: Final = 3
SKIPS: Final = 5
PRECHECK_FAILURES: Final = 5

_DECODERS: Final = {
    "json5": "outputs were read as JSON5: ask the model for strict JSON in the prompt, or turn structured output on",
    "json-repair": "outputs needed json-repair, the last resort: turn structured output on, or ask for less in one answer",
}
_STAGES: Final = {
    "extract": "outputs had text around the value: tell the model to answer with the JSON alone, or turn structured output on",
    "tolerant": "outputs needed tolerant reading: turn structured output on, and check where level 2 is really needed",
    "semantic": "outputs had values of the wrong type: name the types in the prompt, or change the schema to what models say",
}
_CHANGES: Final = {"step": "adjust its prompt, or add a processor", "model": "adjust its prompts, or use another model"}
_ADD: Final = {
    "extract": "tell its model to answer with the value alone",
    "syntactic": "ask for strict JSON in its prompt",
    "tolerant": "turn structured output on for it",
    "semantic": "name the types in its prompt, or add an output processor that converts",
    "custom": "let the prompt ask for what its output processors do",
}


def advise(report: HealthReport) -> Iterator[Advice]:
    """Return what the report says should be changed, the general first."""
    yield from _structured_output(report)
    yield from _from_counts("decoder", report.transforms, _DECODERS, DECODER_USES)
    yield from _from_counts("stage", report.stages, _STAGES, STAGE_TOTAL)
    yield from _top("step", report.steps, report.step_stages)
    yield from _top("model", report.models, report.model_stages)
    yield from _skips(report.models)
    yield from _prechecks(report.steps)
    trend = report.trend
    if trend.prev_half is not None and trend.last_half is not None:
        when = "from the first half of the window to the second"
        yield from _rising("rising", when, trend.prev_half, trend.last_half, RISE)
    if trend.buckets:
        yield from _rising("drift", "from the first bucket to the last", trend.buckets[0], trend.buckets[-1], DRIFT)


def _structured_output(report: HealthReport) -> Iterator[Advice]:
    coercions = report.totals.coercions
    if coercions >= SOE_COERCIONS and not report.totals.soe_applied:
        message = f"{coercions:,} coercions and no structured output: turn it on where the provider supports it"
        yield Advice(code="enable_soe", value=coercions, threshold=SOE_COERCIONS, message=message)


def _from_counts(kind: str, counts: Mapping[str, int], known: Mapping[str, str], threshold: int) -> Iterator[Advice]:
    for name, advice in known.items():
        count = counts.get(name, 0)
        if count >= threshold:
            code = f"{kind}_{name.replace('-', '_')}"
            yield Advice(code=code, value=count, threshold=threshold, message=f"{count:,} {advice}")


def _top(kind: str, places: Mapping[str, Figures], stages: Mapping[str, StageCounts]) -> Iterator[Advice]:
    """Return the worst step, or the worst model, which comes first."""
    name, figures = next(iter(places.items()), ("", Figures()))
    if figures.coercions < TOP_COERCIONS:
        return
    count, change = figures.coercions, _CHANGES[kind]
    message = f"the {kind} '{name}' needs most coercions, {count:,}: {change}"
    yield Advice(code=f"top_{kind}", about=name, value=count, threshold=TOP_COERCIONS, message=message)
    for stage, times in stages.get(name, {}).items():
        if times >= TOP_STAGE:
            hint = _ADD.get(stage, "look at its events")
            text = f"the {kind} '{name}' needs the stage {stage}, {times:,} times: {hint}"
            yield Advice(code=f"top_{kind}_{stage}", about=name, value=times, threshold=TOP_STAGE, message=text)


def _skips(models: Mapping[str, Figures]) -> Iterator[Advice]:
    for name, figures in models.items():
        if figures.soe_skipped >= SKIPS:
            why = ", ".join(f"{reason} {count}" for reason, count in figures.soe_skip_reasons.items())
            message = f"structured output was skipped {figures.soe_skipped:,} times for the model '{name}' ({why})"
            yield Advice(code="soe_skips", about=name, value=figures.soe_skipped, threshold=SKIPS, message=message)


def _prechecks(steps: Mapping[str, Figures]) -> Iterator[Advice]:
    for name, figures in steps.items():
        failed = figures.precheck_failed
        if failed >= PRECHECK_FAILURES:
            rate = figures.precheck_failure_rate or 0.0
            message = f"{failed:,} prechecks failed at the step '{name}', {rate:.0%} of all: ask for a better plan in its prompt"
            code = "precheck_failures"
            yield Advice(code=code, about=name, value=failed, threshold=PRECHECK_FAILURES, message=message)


def _rising(code: str, when: str, before: WindowPart, after: WindowPart, threshold: int) -> Iterator[Advice]:
    rise = after.coercions - before.coercions
    if rise >= threshold:
        message = f"coercions rose by {rise:,} {when}"
        yield Advice(code=code, value=rise, threshold=threshold, message=message)
    for stage, by in _grown(before.stages, after.stages, threshold).items():
        message = f"the stage {stage} rose by {by:,} {when}"
        yield Advice(code=f"{code}_{stage}", value=by, threshold=threshold, message=message)
    for kind, was, now, was_stages, now_stages in (
        ("step", before.steps, after.steps, before.step_stages, after.step_stages),
        ("model", before.models, after.models, before.model_stages, after.model_stages),
    ):
        name, by = next(iter(_grown(was, now, threshold).items()), ("", 0))
        if not by:
            continue
        look = "look at what changed in its prompt, or with its provider"
        message = f"the {kind} '{name}' rose most, by {by:,} {when}: {look}"
        yield Advice(code=f"{code}_{kind}", about=name, value=by, threshold=threshold, message=message)
        for stage, more in _grown(was_stages.get(name, {}), now_stages.get(name, {}), threshold).items():
            message = f"the stage {stage} of the {kind} '{name}' rose by {more:,} {when}"
            yield Advice(code=f"{code}_{kind}_{stage}", about=name, value=more, threshold=threshold, message=message)


def _grown(before: Mapping[str, int], after: Mapping[str, int], threshold: int) -> dict[str, int]:
    grown = {name: by for name, count in after.items() if (by := count - before.get(name, 0)) >= threshold}
    return dict(sorted(grown.items(), key=lambda item: (-item[1], item[0])))
