"""Resources where a pipeline is written: what is refused, what the fingerprint knows, how the facade names them (§2.1, §2.4)."""

import sys
from functools import partial
from types import ModuleType
from unittest.mock import Mock

import pytest

from flujo_client import Flujo, Pipeline, Step
from flujo_client.errors import PipelineError
from flujo_client.pipeline.check import check
from flujo_client.pipeline.compile import compile_plan
from flujo_client.pipeline.reference import load_pipeline, reference_with_options
from flujo_client.plan.plan import Plan
from tests.support.builders import echo

ALL = ("*",)
STEP = Step("s", echo)


class Pool:
    def __init__(self, size=1):
        self.size = size


class OtherPool(Pool):
    pass


def needs(size):
    return size


PIPELINE = Pipeline([STEP])
NAMED = Pipeline([STEP], name="offers", resources=Pool())
POOL = Pool()
OBJECT = f"{__name__}:POOL"


def plan(resources=None, body=None):
    return compile_plan(Pipeline([STEP, Pipeline([STEP], resources=body).as_step("n")], resources=resources))


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        (Mock(), "its resources are a mock"),
        (needs, "its resources: needs is called without arguments, but requires some"),
        (partial(needs), "its resources: the partial is called without arguments"),
        ("nowhere:pool", "resources object 'nowhere:pool' not found: no module named 'nowhere'"),
        ("pool", "'pool' is not a reference to a resources object"),
        (f"{__name__}:needs", "its resources: needs is called without arguments"),
    ],
)
@pytest.mark.parametrize("where", ["pipeline", "body"])
def test_what_cannot_be_opened_is_refused_before_it_is_sent(resources, said, where):
    inner = Pipeline([STEP], resources=resources if where == "body" else None)
    outer = Pipeline([inner.as_step("n")], resources=resources if where == "pipeline" else None)
    with pytest.raises(PipelineError) as caught:
        check(outer, allowed=ALL)
    [finding] = caught.value.findings
    assert said in finding
    assert finding.startswith("step 'n': in 'body', ") == (where == "body")


def test_a_reference_outside_the_allowed_imports_is_refused():
    """M-014."""
    with pytest.raises(PipelineError, match="resources object 'os:getcwd' is outside the allowed imports"):
        check(Pipeline([STEP], resources="os:getcwd"), allowed=("tests.support.builders",))


@pytest.mark.parametrize("resources", [None, Pool, Pool(), partial(Pool, 3), {"a": 1}, OBJECT, dict, print, 0])
def test_what_can_be_opened_passes(resources):
    check(Pipeline([STEP], resources=resources), allowed=ALL)


@pytest.mark.parametrize("where", ["resources", "body"])
def test_other_resources_are_another_fingerprint(where):
    """Of the pipeline itself, and of one inside it."""
    kinds = [None, Pool(), OtherPool(), Pool, OBJECT, f"{__name__}:NAMED"]
    assert len({plan(**{where: each}).fingerprint for each in kinds}) == len(kinds)


def test_resources_of_one_kind_are_one_fingerprint():
    """Every process makes its own object."""
    assert plan(Pool(1), Pool(2)).fingerprint == plan(Pool(3), Pool(4)).fingerprint


@pytest.mark.parametrize("resources", [None, Pool()])
def test_a_stored_plan_keeps_its_fingerprint(resources):
    made = plan(resources, resources)
    assert Plan.from_tree(made.to_tree()) == made


def test_without_resources_a_plan_is_what_it_was():
    """Runs under way are not parked."""
    tree = plan().to_tree()
    assert "resources" not in tree
    assert all("resources" not in node["traits"] for node in tree["nodes"])


def test_resources_are_not_shown():
    """A client's repr may hold its password."""
    assert "hunter2" not in repr(Pipeline([STEP], resources="hunter2"))


def test_pipelines_in_a_row_keep_their_resources():
    """The first one's, where both name some."""
    one, other, none = (Pipeline([STEP], resources=each) for each in ("m:one", "m:other", None))
    assert [(a >> b).resources for a, b in ((one, other), (one, none), (none, other), (none, none))] == [
        "m:one",
        "m:one",
        "m:other",
        None,
    ]
    assert (STEP >> one).resources == (one >> STEP).resources == "m:one"


def test_a_reference_may_name_resources_too():
    found = load_pipeline(f"{__name__}:PIPELINE?resources={OBJECT}", allowed=ALL)
    assert (found.resources, found.steps, found.name) == (OBJECT, PIPELINE.steps, "PIPELINE")


def test_named_resources_take_the_place_of_the_pipelines_own():
    found = load_pipeline(reference_with_options(f"{__name__}:NAMED", resources=OBJECT), allowed=ALL)
    assert (found.resources, found.name) == (OBJECT, "offers")


def test_objects_are_named_by_the_module_that_holds_them(monkeypatch):
    module = ModuleType("acme_orders")
    module.pipeline, module.pool = Pipeline([STEP]), Pool()
    monkeypatch.setitem(sys.modules, "acme_orders", module)
    assert (
        reference_with_options(module.pipeline, resources=module.pool)
        == "acme_orders:pipeline?resources=acme_orders:pool"
    )


def test_the_facade_refuses_resources_that_no_worker_could_find():
    """§2.1: with the way out, before anything is started."""
    with pytest.raises(PipelineError, match="this resources object is not an attribute of a module") as caught:
        Flujo(f"{__name__}:PIPELINE", resources=Pool())
    assert "at the top of a module, or give 'package.module:attribute'" in caught.value.suggestion


def test_the_facade_refuses_a_pipeline_that_no_worker_could_find_with_them():
    with pytest.raises(PipelineError, match="this pipeline is not an attribute of a module"):
        Flujo(Pipeline([STEP]), resources=OBJECT)
