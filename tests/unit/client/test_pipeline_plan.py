"""The plan and its fingerprint: the same in every process, another whenever something that matters changed."""

import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from flujo_client import Pipeline, Step, StepConfig
from flujo_client.pipeline.compile import compile_plan
from flujo_client.pipeline.reference import default_name
from flujo_client.plan.plan import Backoff, Plan
from flujo_client.serial import dumps, loads
from tests.support.builders import echo


class Book(BaseModel):
    total: int = 0


class Agent:
    def __init__(self, **traits):
        vars(self).update(traits)

    def run(self, data):
        return data


class Judge:
    def validate(self, data, **_):
        return data


class OtherJudge(Judge):
    pass


def other(data):
    return data


BASE = Step("a", echo, config=StepConfig(max_retries=2), plugins=[Judge(), (OtherJudge(), 5)], validators=[echo])
CHANGES = {
    "name": {"name": "b"},
    "agent": {"agent": other},
    "agent kind": {"agent": Agent()},
    "agent reference": {"agent": "tests.support.builders:echo"},
    "retries": {"config": StepConfig(max_retries=3)},
    "timeout": {"config": StepConfig(max_retries=2, timeout_s=5)},
    "backoff": {"config": StepConfig(max_retries=2, backoff=Backoff(base_s=2))},
    "temperature": {"config": StepConfig(max_retries=2, temperature=0.1)},
    "plugins": {"plugins": []},
    "priority": {"plugins": [Judge(), (OtherJudge(), -5)]},
    "validators": {"validators": [other]},
    "updates_context": {"updates_context": True},
    "sink_to": {"sink_to": "total"},
    "queue": {"queue": "gpu"},
}


def fingerprint(*steps, **rest):
    return compile_plan(Pipeline(list(steps), **rest)).fingerprint


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_matters_about_a_step_changes_the_fingerprint(change):
    assert fingerprint(replace(BASE, **CHANGES[change])) != fingerprint(BASE)


@pytest.mark.parametrize("change", [{"name": "p"}, {"version": "2"}, {"context_model": Book}])
def test_whatever_matters_about_a_pipeline_changes_the_fingerprint(change):
    assert fingerprint(BASE, **change) != fingerprint(BASE)


def test_the_order_of_steps_matters():
    a, b = Step("a", echo), Step("b", echo)
    assert fingerprint(a, b) != fingerprint(b, a)


@pytest.mark.parametrize(
    ("one", "another"),
    [
        ({"model": "x"}, {"model": "y"}),
        ({"system_prompt": "x"}, {"system_prompt": "y"}),
        ({"_system_prompts": ("x",)}, {"_system_prompts": ("x", "y")}),
        ({"output_type": int}, {"output_type": str}),
        ({"output_type": list[int]}, {"output_type": list[str]}),
        ({"output_type": int | None}, {"output_type": str | None}),
        ({"__flujo_identity__": {"v": 1}}, {"__flujo_identity__": {"v": 2}}),
        ({"__flujo_target__": echo}, {"__flujo_target__": other}),
    ],
)
def test_agents_of_one_class_differ_by_what_they_ask_and_answer(one, another):
    assert fingerprint(Step("a", Agent(**one))) != fingerprint(Step("a", Agent(**another)))
    assert fingerprint(Step("a", Agent(**one))) == fingerprint(Step("a", Agent(**one)))


def test_equal_pipelines_have_equal_fingerprints():
    assert fingerprint(BASE) == fingerprint(replace(BASE, plugins=[Judge(), (OtherJudge(), 5)]))
    assert fingerprint(Step("a", partial(echo, mode="x"))) == fingerprint(Step("a", partial(echo, mode="x")))


def test_the_fingerprint_holds_no_secret_and_no_address():
    plan = compile_plan(Pipeline([Step("a", partial(echo, api_key="hunter2")), Step("b", Agent(token="hunter2"))]))
    text = dumps(plan.to_tree()).decode()
    assert "hunter2" not in text
    assert "0x" not in text


_SCRIPT = """
import test_pipeline_plan as here
from flujo_client.pipeline.pipeline import Pipeline
agent = here.Agent(model="m", output_type=int | None, system_prompt="p")
pipeline = Pipeline([here.BASE, here.Step("z", agent)], context_model=here.Book)
print(here.compile_plan(pipeline).fingerprint)
"""


@pytest.mark.large
@pytest.mark.processes
def test_every_process_computes_the_same():
    """Client and workers do it on their own, whatever their hash seed."""
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    seen = set()
    for seed in ("0", "1", "4242"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join([*folders, *sys.path])}
        run = subprocess.run([sys.executable, "-c", _SCRIPT], env=env, capture_output=True, text=True, check=True)
        seen.add(run.stdout.strip())
    assert len(seen) == 1
    assert len(seen.pop()) == 64


backoffs = st.none() | st.builds(Backoff, base_s=st.floats(0, 1e3), factor=st.floats(1, 10), jitter=st.floats(0, 1))
configs = st.builds(
    StepConfig, max_retries=st.integers(0, 9), backoff=backoffs, timeout_s=st.none() | st.floats(0.1, 9)
)
steps = st.lists(st.builds(Step, st.text("abcü ", min_size=1), st.just(echo), configs), min_size=1, max_size=4)


@given(steps, st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=9))
def test_a_plan_survives_its_journey(steps, version):
    plan = compile_plan(Pipeline(steps, version=version))
    assert Plan.from_tree(loads(dumps(plan.to_tree()))) == plan


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("shop:orders", "orders"),
        ("shop:make.orders", "make.orders"),
        ("shop.orders:pipeline", "orders"),
        ("shop.pipeline:pipeline", "shop"),
        ("shop:pipeline?hooks=shop:hook", "shop"),
        ("pipeline:pipeline", "pipeline"),
    ],
)
def test_a_pipeline_without_a_name_is_named_by_what_its_reference_tells(reference, name):
    assert default_name(reference) == name


def test_a_pipeline_without_a_name_takes_its_attributes():
    assert compile_plan(Pipeline([BASE]), default_name="orders").name == "orders"
    assert compile_plan(Pipeline([BASE], name="own"), default_name="orders").name == "own"
