"""Each limit holds what is at it, and what is one above is refused with an error that names it (docs/reference/limits.md)."""

import json
from pathlib import Path

import pytest

from flujo_client.contract.outcome import Fault
from flujo_client.errors import FlujoError
from flujo_client.pipeline.check import check, findings_of
from flujo_client.pipeline.compile import compile_plan
from flujo_client.pipeline.human import HumanInTheLoopStep
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.step import Step
from flujo_client.serial import stored
from flujo_client.sizes import (
    MAX_BRANCHES,
    MAX_CONTAINERS,
    MAX_ERROR_DETAILS,
    MAX_ERROR_TEXT,
    MAX_ERROR_WORD,
    MAX_METADATA_BYTES,
    MAX_NAME,
    MAX_NESTING,
    MAX_PATH,
    MAX_PLAN_BYTES,
    MAX_QUESTION,
    MAX_QUEUE,
    MAX_REFERENCE,
    MAX_RUN_ID,
    MAX_STEPS,
    MAX_WORD,
)
from tests.support.builders import echo, enqueued, pipeline_of


def nested(levels):
    """A step inside so many containers."""
    body = Pipeline([Step("s", echo)])
    for _ in range(levels):
        body = Pipeline([body.as_step("n")])
    return body


def at_path(size):
    """A step whose path has so many bytes: eight names of 100, and between them the keys of bodies."""
    body, length = Pipeline([Step("s", echo)]), 1
    while size - length > MAX_NAME + len("/body/"):
        body, length = Pipeline([body.as_step("n" * 80)]), length + 80 + len("/pipeline/")
    return body, length


def nest(levels):
    value = []
    for _ in range(levels - 1):
        value = [value]
    return value


def plan_of(size):
    """A pipeline whose plan has so many bytes."""
    bare = len(stored(compile_plan(pipeline_of("a", meta={"m": ""})).to_tree(), path="plan"))
    return compile_plan(pipeline_of("a", meta={"m": "x" * (size - bare)}))


def checked(pipeline):
    check(pipeline, allowed=("*",))
    return compile_plan(pipeline)


LIMITS = {
    "steps": (MAX_STEPS, lambda n: checked(pipeline_of(*(f"s{i}" for i in range(n))))),
    "branches": (
        MAX_BRANCHES,
        lambda n: checked(Pipeline([Step.parallel("f", {f"b{i}": Step("s", echo) for i in range(n)})])),
    ),
    "containers": (MAX_CONTAINERS, lambda n: checked(nested(n))),
    "plan": (MAX_PLAN_BYTES, plan_of),
    "nesting": (MAX_NESTING, lambda n: stored(nest(n), path="metadata")),
    "a step's name": (MAX_NAME, lambda n: checked(pipeline_of("n" * n))),
    "a branch's name": (MAX_NAME, lambda n: checked(Pipeline([Step.parallel("f", {"n" * n: Step("s", echo)})]))),
    "a step's queue": (MAX_QUEUE, lambda n: checked(pipeline_of("a", queue="q" * n))),
    "the pipeline's name": (MAX_WORD, lambda n: checked(Pipeline([Step("a", echo)], name="n" * n))),
    "the pipeline's version": (MAX_WORD, lambda n: checked(Pipeline([Step("a", echo)], version="v" * n))),
    "key": (MAX_WORD, lambda n: enqueued(idempotency_key="k" * n)),
    "tenant": (MAX_WORD, lambda n: enqueued(tenant="t" * n)),
    "queue": (MAX_WORD, lambda n: enqueued(queue="q" * n)),
    "run id": (MAX_RUN_ID, lambda n: enqueued(run_id="r" * n)),
    "metadata": (MAX_METADATA_BYTES, lambda n: enqueued(metadata={"m": "x" * (n - len('{"m":""}'))})),
    "question": (MAX_QUESTION, lambda n: checked(Pipeline([HumanInTheLoopStep("ask", "?" * n)]))),
}


@pytest.mark.large
@pytest.mark.parametrize("name", LIMITS)
def test_what_is_at_the_limit_is_taken_and_what_is_above_is_refused_by_name(name):
    limit, make = LIMITS[name]
    make(limit)
    with pytest.raises(FlujoError) as refused:
        make(limit + 1)
    assert f"{limit:,}" in str(refused.value) or f"{limit}" in str(refused.value) or name == "a step's queue"


def test_a_path_is_bounded_in_bytes():
    body, _ = at_path(MAX_PATH - 200)
    checked(body)
    with pytest.raises(FlujoError, match="more than 1,000 bytes together"):
        checked(at_path(MAX_PATH + 200)[0])


def test_a_reference_is_bounded():
    from flujo_client.config.models import SizeLimits
    from flujo_client.pipeline.submit import Order, new_run

    plan = compile_plan(pipeline_of())

    def record(size):
        return new_run(plan, "m:" + "a" * (size - 2), 1, Order("run_1"), size=SizeLimits(), allowed=("*",))

    record(MAX_REFERENCE)
    with pytest.raises(FlujoError, match="at most 1,000 are allowed"):
        record(MAX_REFERENCE + 1)


def test_an_errors_texts_are_shortened_to_what_is_kept():
    fault = Fault("c" * 999, "t", "m" * (MAX_ERROR_TEXT + 1), "f" * MAX_ERROR_TEXT)
    assert len(fault.category) == MAX_ERROR_WORD
    assert (len(fault.message), fault.message[-1], fault.feedback[-1]) == (MAX_ERROR_TEXT, "…", "f")
    assert Fault.from_tree(fault.to_tree()) == fault


def test_an_errors_details_are_few_plain_values():
    given = {"what": "w" * 999, "path": Path("/srv"), "limit": 0.05, "by": None, 7: 1} | {f"n{n}": n for n in range(99)}
    fault = Fault("c", "t", "m", "f", details=given)
    what = fault.details["what"]
    assert (len(fault.details), len(what), what[-1]) == (MAX_ERROR_DETAILS, MAX_ERROR_WORD, "…")
    assert {**fault.details, "what": ""}.items() >= {"path": "/srv", "limit": 0.05, "by": None, "n0": 0}.items()
    assert Fault.from_tree(json.loads(json.dumps(fault.to_tree()))) == fault
    with pytest.raises(TypeError, match="has details that are a list instead of an object"):
        Fault.from_tree(fault.to_tree() | {"details": []})


class Unprintable:
    def __str__(self):
        raise ValueError


def test_details_that_are_no_numbers_where_readers_count_on_one_are_left_out():
    given = {
        "timeout_s": "soon",
        "status": None,
        "line": float("nan"),
        "more": [1],
        "spent": 10**5000,
        "by": Unprintable(),
    }
    assert Fault("c", "t", "m", "f", details=given).details == {"by": "(cannot be shown)"}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("a\0b", "would not return this str unchanged"),
        ("\ud800", "would not return this str unchanged"),
        (1e16, "would not return this float unchanged"),
        (float("nan"), "would not return this float unchanged"),
        (2**64, "would not return this int unchanged"),
        ({1: "x"}, "a key must be a text"),
        ({"\0": 1}, "a key must be a text"),
        ((1, 2), "object of type tuple is not plain JSON"),
    ],
)
def test_metadata_that_postgres_would_change_is_refused_with_its_place(value, said):
    with pytest.raises(FlujoError, match=said) as refused:
        enqueued(metadata={"a": [0, value]})
    assert str(refused.value).startswith("metadata.a[1]")


def test_a_plan_that_cannot_be_kept_is_a_finding_of_validation_too():
    """`flujo validate` and enqueue refuse the same."""
    pipeline = pipeline_of("a", meta={"m": "x" * MAX_PLAN_BYTES})
    [finding] = findings_of(pipeline, allowed=("*",))
    assert "at most 16,777,216 are allowed" in finding.text
