"""The thresholds of the health check's advice, just below and at each (M-174, M-180, M-181, §2.8)."""

from datetime import UTC, datetime, timedelta

import pytest

from flujo_client.config.models import Health
from flujo_client.health.aggregate import build
from flujo_client.health.facts import ArosFacts, Counter, Depths, HealthQuery, MachineFacts, RunCount

AT = datetime(2026, 3, 2, 12, tzinfo=UTC)
STAGE = "aros.coercion.stage."


def counter(name, number, *, half=1, bucket=1, step="s", model="m", pipeline="p"):
    return Counter(half, bucket, pipeline, step, "a", model, name, number)


def acted(stage, times, **where):
    """A stage that acted that often, as the tally tells it."""
    return [counter(f"{STAGE}{stage}", times, **where), counter("aros.coercion.total", times, **where)]


def used(transform, times):
    return [counter(f"aros.coercion.transforms.{transform}", times)]


def report(*counters, buckets=None, runs=10):
    question = HealthQuery(since_hours=24, buckets=buckets)
    counts = [RunCount(half, half, "p", runs) for half in (0, 1)]
    facts = ArosFacts(AT, AT - timedelta(hours=24), counts, [each for some in counters for each in some])
    return build(question, facts, MachineFacts(), Depths(), Health())


def codes(*counters, **question):
    return {(each.code, each.about): each for each in report(*counters, **question).recommendations}


SOE = [counter("aros.soe.count", 1)]


@pytest.mark.parametrize(
    ("code", "about", "threshold", "counters"),
    [
        ("enable_soe", None, 10, lambda n: acted("syntactic", n)),
        ("decoder_json5", None, 5, lambda n: used("json5", n)),
        ("decoder_json_repair", None, 5, lambda n: used("json-repair", n)),
        ("stage_tolerant", None, 5, lambda n: acted("tolerant", n)),
        ("stage_semantic", None, 5, lambda n: acted("semantic", n)),
        ("stage_extract", None, 5, lambda n: acted("extract", n)),
        ("top_step", "s", 5, lambda n: acted("syntactic", n)),
        ("top_model", "m", 5, lambda n: acted("syntactic", n)),
        ("soe_skips", "m", 5, lambda n: [counter("aros.soe.skipped", n)]),
        ("precheck_failures", "s", 5, lambda n: [counter("aros.precheck.fail", n)]),
        ("rising", None, 2, lambda n: acted("custom", n)),
        ("rising_custom", None, 2, lambda n: acted("custom", n)),
        ("rising_step", "s", 2, lambda n: acted("custom", n)),
        ("rising_model", "m", 2, lambda n: acted("custom", n)),
        ("rising_step_extract", "s", 2, lambda n: acted("extract", n)),
        ("rising_model_semantic", "m", 2, lambda n: acted("semantic", n)),
        ("drift", None, 3, lambda n: acted("tolerant", n)),
        ("drift_tolerant", None, 3, lambda n: acted("tolerant", n)),
        ("drift_step", "s", 3, lambda n: acted("tolerant", n)),
        ("drift_model_tolerant", "m", 3, lambda n: acted("tolerant", n)),
    ],
)
def test_it_is_told_at_its_threshold_and_not_below(code, about, threshold, counters):
    assert (code, about) not in codes(counters(threshold - 1), buckets=2)
    told = codes(counters(threshold), buckets=2)[code, about]
    assert (told.value, told.threshold) == (threshold, threshold)
    assert about is None or f"'{about}'" in told.message


@pytest.mark.parametrize(("kind", "about"), [("step", "s"), ("model", "m")])
def test_a_stage_of_the_worst_is_told_from_three_on(kind, about):
    others = acted("syntactic", 5)
    assert (f"top_{kind}_semantic", about) not in codes(others, acted("semantic", 2))
    assert codes(others, acted("semantic", 3))[f"top_{kind}_semantic", about].value == 3


def test_structured_output_is_not_advised_to_who_has_it():
    assert ("enable_soe", None) not in codes(acted("syntactic", 10), SOE)


def test_only_the_worst_step_and_the_worst_model_get_hints():
    told = codes(acted("syntactic", 6, step="good", model="x"), acted("syntactic", 7, step="bad", model="y"))
    assert [(code, about) for code, about in told if code in ("top_step", "top_model")] == [
        ("top_step", "bad"),
        ("top_model", "y"),
    ]


def test_only_the_step_that_rose_most_is_named():
    told = codes(acted("custom", 3, step="a"), acted("custom", 4, step="b"), acted("custom", 9, step="c", half=0))
    assert [about for code, about in told if code == "rising_step"] == ["b"]


def test_what_falls_is_no_trend():
    told = codes(acted("custom", 9, half=0, bucket=0), acted("custom", 1), buckets=2)
    assert not [code for code, _ in told if code.startswith(("rising", "drift"))]


def test_a_rise_in_shadow_mode_is_none():
    """M-204: what shadow mode would have done is apart."""
    assert codes([counter("aros.shadow.coercion.total", 20), counter("aros.shadow.coercion.stage.tolerant", 20)]) == {}


def test_a_rate_counts_the_runs_of_the_pipelines_in_which_the_step_occurs():
    """M-173: per 100 runs."""
    facts = ArosFacts(
        AT,
        None,
        [RunCount(None, None, "shop", 4), RunCount(None, None, "post", 96)],
        acted("extract", 2, pipeline="shop", half=None, bucket=None),
    )
    told = build(HealthQuery(), facts, MachineFacts(), Depths(), Health())
    assert (told.steps["s"].runs, told.steps["s"].per_100_runs) == (4, 50.0)
    assert (told.totals.runs, told.totals.per_100_runs) == (100, 2.0)
    assert {name: each.per_100_runs for name, each in told.pipelines.items()} == {"shop": 50.0, "post": 0.0}


def test_who_is_not_known_has_no_line_of_its_own():
    told = report(acted("extract", 2, model=None))
    assert (told.models, told.totals.coercions) == ({}, 2)


@pytest.mark.parametrize("buckets", [1, 0, -3])
def test_fewer_than_two_buckets_are_left_out_with_a_note(buckets):
    """M-177."""
    told = report(buckets=buckets)
    assert told.trend.buckets == ()
    assert told.notes == ("trend buckets are left out: a trend needs at least 2",)
