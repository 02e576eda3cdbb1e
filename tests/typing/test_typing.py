"""The async client takes the sync client's options, and a type checker knows them."""

import inspect
import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from flujo_client import ConditionalStep, LoopStep, ParallelStep, RunRequest, Settings, Step
from flujo_client.api.client import AsyncFlujoClient, FlujoClient
from flujo_client.api.handle import AsyncRunHandle, RunHandle
from flujo_client.api.operations import Enqueued
from flujo_client.pipeline import factories as container_options

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


SOURCES = [HERE / "async_client.py", HERE / "pipelines.py", HERE / "frozen_values.py"]


def marks():
    """The lines that are marked as wrong, with mypy's word for it."""
    return {
        (source.name, number, found[1])
        for source in SOURCES
        for number, line in enumerate(source.read_text().splitlines(), 1)
        if (found := re.search(r"# wrong: ([a-z-]+)", line))
    }


def test_a_type_checker_accepts_and_refuses_what_it_should():
    """mypy reports exactly the lines that are marked as wrong. It runs in a separate process, which gives a gigabyte of trees back."""
    options = ["--config-file", HERE / "mypy.ini", "--cache-dir", ROOT / ".mypy_cache/typing"]
    command = [sys.executable, "-m", "mypy", *options, *SOURCES]
    checked = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert not checked.stderr
    found = re.findall(r"([a-z_]+\.py):(\d+): error: .*\[([a-z-]+)\]", checked.stdout)
    assert {(name, int(line), code) for name, line, code in found} == marks(), checked


def test_a_checker_that_knows_no_plugins_finds_the_same():
    """Editors do not run mypy's: pipelines, runs and results are generic for them too."""
    options = ["--output-format=json", f"--python-interpreter-path={sys.executable}", "--search-path", str(ROOT)]
    checked = subprocess.run(
        [Path(sys.executable).with_name("pyrefly"), "check", *options, *SOURCES],
        check=False,
        capture_output=True,
        text=True,
    )
    errors = json.loads(checked.stdout)["errors"]
    assert {(Path(each["path"]).name, each["line"]) for each in errors} == {each[:2] for each in marks()}, checked


METHODS = [
    (name, sync, other)
    for sync, other in ((FlujoClient, AsyncFlujoClient), (RunHandle, AsyncRunHandle))
    for name in vars(sync)
    if not name.startswith("_") and inspect.isfunction(vars(sync)[name])
]


@pytest.mark.parametrize(("name", "sync", "other"), METHODS, ids=lambda each: getattr(each, "__name__", each))
def test_both_faces_take_the_same(name, sync, other):
    assert parameters(getattr(other, name)) == parameters(getattr(sync, name))


def parameters(method):
    return {
        name: (each.kind, str(each.annotation).replace("Async", ""), each.default)
        for name, each in inspect.signature(method).parameters.items()
    }


@pytest.mark.parametrize(
    "called",
    [
        lambda client: client.enqueue("shop:pipeline", 1, tenat="acme"),
        lambda client: client.enqueue_many("shop:pipeline", [1], tenat="acme"),
        lambda client: client.approvals(tenat="acme"),
        lambda client: client.list_runs(tenat="acme"),
        lambda client: RunHandle(client, Enqueued("run", is_new=False)).resume(1, tenat="acme"),
        lambda client: RunHandle(client, Enqueued("run", is_new=False)).retry(tenat="acme"),
        lambda client: RunHandle(client, Enqueued("run", is_new=False)).fork("step", tenat="acme"),
        lambda _: RunRequest(1, tenat="acme"),
    ],
)
def test_an_option_that_does_not_exist_is_refused(called):
    """It was ignored where a method takes `**options`, so that a run had no tenant or no deadline."""
    nowhere = {"database_url": "postgresql://nobody@127.0.0.1:1/none", "broker_url": "redis://127.0.0.1:1/0"}
    client = FlujoClient(Settings.model_validate(nowhere))  # it connects when it is first used
    client._door = Unreachable()
    with pytest.raises(TypeError, match="unexpected keyword argument 'tenat'"):
        called(client)


class Unreachable:
    """A door behind which no service is."""

    def perform(self, operation):
        next(operation)
        pytest.fail("a service was asked")


def test_a_step_takes_by_name_what_its_class_has():
    """The signature for type checkers and the dataclass are the same, by names and types."""
    has = {each.name: each.type for each in fields(Step)}
    named = {
        key: each.__forward_arg__
        for kind in (container_options.StepOptions, container_options.MoreStepOptions)
        for key, each in kind.__annotations__.items()
    }
    assert named == {name: kind for name, kind in has.items() if name not in ("name", "agent")}


@pytest.mark.parametrize(
    ("factory", "made", "named"),
    [
        (Step.loop_until, LoopStep, container_options.LoopOptions),
        (Step.parallel, ParallelStep, container_options.ParallelOptions),
        (Step.branch_on, ConditionalStep, container_options.ConditionalOptions),
    ],
)
def test_a_factory_takes_what_its_class_takes(factory, made, named):
    """By the same names, the other names of C-17 among them, of the same types."""
    options = inspect.get_annotations(factory) | {
        key: each.__forward_arg__ for key, each in named.__annotations__.items()
    }
    taken = {each.name for each in fields(made) if each.init}
    others = {name for name, each in vars(made).items() if isinstance(each, property)} - {"kind", "performs"}
    assert set(options) - {"options", "return"} == taken | others
    kinds = {each.name: each.type for each in fields(made)}
    assert {name: options[name] for name in named.__annotations__.keys() & taken} == {
        name: kinds[name] for name in named.__annotations__.keys() & taken
    }


def test_a_factory_takes_either_name_and_refuses_both():
    steps = [
        Step.loop_until("l", COUNT, bool, 3),
        Step.loop_until("l", body=COUNT, exit_condition_callable=bool, max_iterations=3),
        LoopStep("l", body=COUNT, exit_condition_callable=bool, max_loops=3),
    ]
    assert {(each.loop_body_pipeline, each.max_loops) for each in steps} == {(COUNT, 3)}
    assert (
        Step.loop_until("l", COUNT, bool).max_loops == LoopStep("l", body=COUNT, exit_condition_callable=bool).max_loops
    )
    with pytest.raises(TypeError, match="'loop_body_pipeline' and its alias 'body'"):
        Step.loop_until("l", COUNT, bool, body=COUNT)
    with pytest.raises(TypeError, match="loop_body_pipeline"):
        Step.loop_until("l", exit_condition_callable=bool)


COUNT = Step("count", len)
