"""A pipeline that is enqueued again is not checked and compiled again."""

import sys
from dataclasses import replace
from types import ModuleType

import pytest

from flujo_client import Settings
from flujo_client.api.operations import find_pipeline
from flujo_client.errors import PipelineError
from tests.support.builders import pipeline_of


@pytest.fixture
def module(monkeypatch):
    made = ModuleType("compiled_once")
    made.pipeline = replace(pipeline_of("a"), name=None)
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


def find(reference="compiled_once:pipeline", **settings):
    with pytest.raises(StopIteration) as returned:
        next(find_pipeline(Settings(**settings), reference, has_context=False))
    return returned.value.value


def test_a_plan_is_compiled_once(module):
    assert find().plan is find().plan


def test_another_pipeline_under_the_same_reference_is_compiled(module):
    before = find()
    module.pipeline = replace(module.pipeline, version="2")
    assert (before.plan.version, find().plan.version) == ("latest", "2")


def test_each_reference_names_its_own_plan(module):
    module.other = module.pipeline
    assert [find(f"compiled_once:{name}").plan.name for name in ("pipeline", "other")] == ["compiled_once", "other"]


def test_each_list_of_allowed_imports_is_checked(module):
    find()
    with pytest.raises(PipelineError, match="allowed"):
        find(allowed_imports=["shop"])
