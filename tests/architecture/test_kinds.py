"""A kind of step is one `KindSpec` and one module on each floor; nothing else lists kinds (docs/development.md)."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from flujo_client import Pipeline
from flujo_client.blueprint.kind import KINDS as IN_BLUEPRINTS
from flujo_client.pipeline.background import BackgroundStep
from flujo_client.pipeline.compile import compile_plan
from flujo_client.pipeline.fallback import FallbackStep
from flujo_client.plan.kinds import KINDS, YAML_KINDS
from flujo_worker.domain.decide import KINDS as IN_WORKERS

ROOT = Path(__file__).parents[2]
ADDED = ROOT / "tests/architecture/optional_kind"
SPECS = ROOT / "flujo_client/plan/kinds.py"
MADE_OF_OPTIONS = {"fallback": FallbackStep, "background": BackgroundStep}
SHARED_WORDS = {"step"}
"""Kinds whose name also means something else: `step` is a kind of attempt and a key of blueprints too."""
WORDS = {*KINDS, *YAML_KINDS} - SHARED_WORDS
FILES = [path for package in ("flujo_client", "flujo_worker") for path in (ROOT / package).rglob("*.py")]


@pytest.mark.parametrize("spec", [each for each in KINDS.values() if not each.is_composed], ids=lambda each: each.name)
def test_a_worker_knows_what_every_kind_does(spec):
    """M-404: no kind lacks its handler."""
    assert IN_WORKERS[spec.name].enter.__module__.startswith("flujo_worker.domain")
    assert (ROOT / f"flujo_worker/domain/{spec.name}.py").exists()


def test_workers_know_no_other_kinds():
    named = {name for name in KINDS if find_spec(f"flujo_worker.domain.{name}") is not None}
    assert named == {spec.name for spec in KINDS.values() if not spec.is_composed}


@pytest.mark.parametrize("word", YAML_KINDS)
def test_every_kind_of_blueprints_can_be_read_built_and_written(word):
    kind = IN_BLUEPRINTS[word]
    assert kind.spec is YAML_KINDS[word]
    assert kind.table.keys
    assert callable(kind.build)
    assert callable(kind.write)
    assert kind.spec.is_composed or kind.step.spec is kind.spec


def test_blueprints_know_no_other_kinds_and_each_is_a_class_of_its_own():
    assert list(IN_BLUEPRINTS) == list(YAML_KINDS)
    assert len({kind.step for kind in IN_BLUEPRINTS.values()}) == len(IN_BLUEPRINTS)


def test_every_kind_is_a_class_in_the_module_of_its_name():
    for kind in IN_BLUEPRINTS.values():
        room = "recipes" if kind.spec.is_composed else "pipeline"
        assert kind.step.__module__ == f"flujo_client.{room}.{kind.spec.name}"
    named = {name for name, spec in KINDS.items() if spec.yaml_name is None}
    assert {name: step.spec for name, step in MADE_OF_OPTIONS.items()} == {name: KINDS[name] for name in named}


INNER = {
    "dynamic_router": "router",
    "hitl": "human",
    "StateMachine": "machine",
    "import": "nested",
    "wait_for_event": "event",
}
"""The kinds that plans call otherwise than blueprints."""


def test_no_stored_name_changes():
    """Plans of runs under way hold the names, and their fingerprints are made of them."""
    assert {word: spec.name for word, spec in YAML_KINDS.items() if word != spec.name} == INNER
    pipeline = Pipeline.from_yaml_text("steps: [{kind: hitl, name: ask}]")
    assert [node["kind"] for node in compile_plan(pipeline).to_tree()["nodes"]] == ["human"]


def test_the_glossary_lists_the_kinds_with_two_names():
    table = (ROOT / "docs/glossary.md").read_text(encoding="utf-8").partition("## Kinds of step with two names")[2]
    assert dict(re.findall(r"^\| `(\w+)`[^|]*\| `(\w+)` \|$", table, re.MULTILINE)) == INNER


def test_the_view_of_spans_calls_children_as_traces_do():
    """The schema cannot read the specs: a kind that the view does not name has children called `child`."""
    view = (ROOT / "flujo_worker/store/schema.sql").read_text(encoding="utf-8")
    named = dict(
        re.findall(r"WHEN '(\w+)' THEN '(\w+)'", view.partition("b.address = s.parent)")[2].partition("ELSE")[0])
    )
    assert named["loop"] == "iteration"
    assert {name: spec.child for name, spec in KINDS.items() if spec.child is not None} == {
        name: named.get(name, "child") for name, spec in KINDS.items() if spec.child is not None
    }


def kind_words(node):
    """The kinds that a literal lists: as its items, or as the keys of a dict."""
    items = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", ())
    return {each.value for each in items if isinstance(each, ast.Constant) and each.value in WORDS}


def compared_kind(node):
    """The kind that `….kind` is compared with as a text."""
    if not isinstance(node, ast.Compare) or getattr(node.left, "attr", None) != "kind":
        return set()
    return {each.value for each in node.comparators if isinstance(each, ast.Constant) and each.value in WORDS}


def offences(source):
    for node in ast.walk(ast.parse(source)):
        if len(kind_words(node)) > 1 or compared_kind(node):
            yield f"line {node.lineno}: {ast.unparse(node)[:80]}"


def test_no_other_module_lists_kinds_or_compares_with_their_names():
    """M-041, C-18: the dispatcher only looks up."""
    found = {str(path.relative_to(ROOT)): list(offences(path.read_text(encoding="utf-8"))) for path in FILES}
    assert {path: each for path, each in found.items() if each} == {}


@pytest.mark.parametrize(
    "source", ["A = {'loop', 'map'}", "A = {'loop': 1, 'machine': 2}", "A = ('hitl', 'cache')", "x.kind == 'nested'"]
)
def test_a_table_of_kinds_would_be_found(source):
    assert list(offences(source))


TINY = """
import json

from flujo_client import Pipeline
from flujo_client.blueprint.editor import json_schema
from flujo_client.blueprint.validate import validate_text
from flujo_client.contract.trace import CHILDREN
from flujo_client.pipeline.compile import compile_plan
from flujo_client.pipeline.optional import OptionalStep
from flujo_worker.testing import LocalEngine

TEXT = "steps: [{kind: optional, name: try, body: [{name: code, uses: 'builtins:ord', config: {max_retries: 0}}]}]"
pipeline = Pipeline.from_yaml_text(TEXT)
with LocalEngine() as engine:
    outputs = [engine.run(pipeline, value).output for value in ("a", "abc")]
again = Pipeline.from_yaml_text(pipeline.to_yaml())
wrong = (
    "steps: [{kind: optional, name: try, bodies: []}, {kind: optionl, name: other}, {kind: optional, name: last, "
    "body: {name: code, uses: 'builtins:ord', input: '{{ steps.cod.output }}'}}]"
)
print(json.dumps({
    "class": isinstance(pipeline.steps[0], OptionalStep),
    "outputs": outputs,
    "written": compile_plan(again).nodes == compile_plan(pipeline).nodes,
    "trace": CHILDREN["optional"],
    "schema": sorted(json_schema()["$defs"]["kind:optional"]["properties"]),
    "wrong": [f"{each.rule} {each.key}: {each.nearest}" for each in validate_text(wrong, allowed=("builtins",)).findings],
}))
"""


@pytest.mark.processes
def test_a_kind_is_added_by_four_files_that_the_documents_name(tmp_path):
    page = (ROOT / "docs/development.md").read_text(encoding="utf-8")
    files = {path: path.relative_to(ADDED) for path in ADDED.rglob("*.py")}
    shown = re.findall(r"^\| `(\S+\.py)` \|", page.partition("## A kind of step")[2], re.MULTILINE)
    assert sorted(files) == sorted(ADDED.parent / path for path in shown)
    assert len(files) == 4
    for package in ("flujo_client", "flujo_worker"):
        shutil.copytree(ROOT / package, tmp_path / package)
    for path, name in files.items():
        is_new = ROOT / name != SPECS
        assert (tmp_path / name).exists() != is_new
        text = path.read_text(encoding="utf-8")
        (tmp_path / name).write_text(text if is_new else with_constant(text), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-c", TINY], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]) == {
        "class": True,
        "outputs": [97, "abc"],
        "written": True,
        "trace": "child",
        "schema": ["body", "config", "fallback", "kind", "meta", "name", "step", "usage_limits"],
        "wrong": [
            "Y-MISSING steps[0]: None",
            "Y-KEY steps[0].bodies: body",
            "Y-VALUE steps[1].kind: optional",
            "V-T4 steps[2].body.input: steps.code",
        ],
    }


def with_constant(text):
    """The module of specs with the constant of a file behind its last."""
    before, table, after = SPECS.read_text(encoding="utf-8").partition("\nKINDS: Final")
    assert table
    return f"{before}{text[text.index('OPTIONAL') :]}{table}{after}"
