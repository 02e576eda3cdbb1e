"""How a pipeline is named on the wire, and found again."""

import logging
import sys
from types import ModuleType, SimpleNamespace

import pytest

from flujo_client import Pipeline, Step
from flujo_client.errors import PipelineError
from flujo_client.pipeline.reference import load, load_pipeline, reference_of
from tests.support.builders import pipeline_of

ALL = ("*",)
PIPELINE = pipeline_of("a")
STEP = Step("s", str)


def make():
    return PIPELINE


def make_a_step():
    return STEP


NUMBER = 3
NESTED = SimpleNamespace(inner=SimpleNamespace(pipeline=PIPELINE))


def here(name):
    return f"{__name__}:{name}"


@pytest.mark.parametrize("name", ["PIPELINE", "make", "NESTED.inner.pipeline"])
def test_a_pipeline_is_found_by_its_name_or_made(name):
    assert load_pipeline(here(name), allowed=ALL) is PIPELINE


@pytest.mark.parametrize("name", ["STEP", "make_a_step"])
def test_a_step_alone_is_a_pipeline(name):
    assert load_pipeline(here(name), allowed=ALL).steps == [STEP]


@pytest.mark.parametrize("reference", ["", "x", ":x", "x:", "tests.support.builders"])
def test_what_is_no_reference_says_how_to_write_one(reference):
    with pytest.raises(PipelineError, match="is not a reference to a pipeline") as caught:
        load_pipeline(reference, allowed=ALL)
    assert "package.module:attribute" in caught.value.suggestion


def test_what_is_no_pipeline_is_named():
    with pytest.raises(PipelineError, match="is a int, not a Pipeline"):
        load_pipeline(here("NUMBER"), allowed=ALL)


@pytest.mark.parametrize(
    ("reference", "said", "way_out"),
    [
        ("no_such.thing:x", "no module named 'no_such'", "the folder that holds 'no_such'"),
        (here("no_such:x").replace(":", ".", 1), "no module named", None),
        (here("nothing"), "has no 'nothing'", "it has PIPELINE"),
        (here("make.x"), "'make.x'", "it has PIPELINE"),
    ],
)
def test_what_is_not_there_is_named(reference, said, way_out):
    with pytest.raises(PipelineError, match=said) as caught:
        load_pipeline(reference, allowed=ALL)
    assert caught.value.error_code == "UNKNOWN_REFERENCE"
    assert caught.value.suggestion is None if way_out is None else way_out in caught.value.suggestion


@pytest.mark.parametrize("reference", ["acme/orders.py:main", "acme.orders.py:main", "acme/orders:main"])
def test_a_file_is_told_how_it_is_called_as_a_module(reference):
    """What a shell completes is a file's name."""
    with pytest.raises(PipelineError, match="not found") as caught:
        load_pipeline(reference, allowed=ALL)
    assert caught.value.suggestion == "write it as 'acme.orders:main'"


@pytest.mark.parametrize("allowed", [(), ("acme",), ("os.path",), ("o",)])
def test_nothing_outside_the_allowed_imports_is_imported(allowed):
    """M-014."""
    with pytest.raises(PipelineError, match="outside the allowed imports") as caught:
        load("os:system", allowed=allowed, what="agent")
    assert "add 'os' to allowed_imports" in caught.value.suggestion


@pytest.mark.parametrize("reference", [here("logging.shutdown"), here("logging")])
def test_no_reference_leads_through_an_allowed_module_into_another(monkeypatch, reference):
    """M-014: a function that makes a pipeline is called, so it must stand where only allowed code does."""
    monkeypatch.setattr(logging, "shutdown", lambda: pytest.fail("called"))
    with pytest.raises(PipelineError, match="leads into the module 'logging'"):
        load_pipeline(reference, allowed=(__name__,))


@pytest.mark.parametrize("name", ["__loader__.get_data", "make.__globals__.get", "NESTED.__class__"])
def test_no_reference_leads_into_pythons_own_workings(name):
    """M-014: every module has a loader, which would read and write any file for whoever names it as a tool."""
    with pytest.raises(PipelineError, match="Python's internals"):
        load(here(name), allowed=ALL, what="tool")


@pytest.mark.parametrize("body", ["raise SystemExit('bye')", "def make():\n    raise SystemExit('bye')"])
def test_a_module_that_exits_ends_no_one_else(tmp_path, monkeypatch, body):
    """On a worker the attempt would be `running` for as long as the process lives (law 6)."""
    (tmp_path / "leaving.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "leaving", raising=False)
    with pytest.raises(PipelineError, match="raised SystemExit: bye") as caught:
        load_pipeline("leaving:make", allowed=ALL)
    assert caught.value.error_code == "IMPORT_FAILED"


def test_the_main_script_is_never_a_workers_module():
    with pytest.raises(PipelineError, match="outside the allowed imports"):
        load_pipeline("__main__:pipeline", allowed=ALL)


def test_a_pipeline_is_named_by_the_module_that_holds_it():
    pipeline = Pipeline([STEP])
    module = hold("acme_orders", pipeline)
    try:
        assert reference_of(pipeline) == "acme_orders:pipeline"
        assert load_pipeline("acme_orders:pipeline", allowed=ALL) is pipeline
    finally:
        del sys.modules[module]


def test_what_no_module_holds_cannot_be_sent():
    with pytest.raises(PipelineError, match="not an attribute of a module") as caught:
        reference_of(Pipeline([STEP]))
    assert "at the top of a module" in caught.value.suggestion


def test_a_script_that_imports_its_pipeline_names_the_module_it_is_from(monkeypatch):
    """`from acme.orders import pipeline; client.enqueue(pipeline)`: the worker imports acme.orders, not the script."""
    pipeline = Pipeline([STEP])
    monkeypatch.setattr(sys.modules["__main__"], "pipeline", pipeline, raising=False)
    monkeypatch.setitem(sys.modules, "__mp_main__", sys.modules["__main__"])
    module = hold("acme_orders", pipeline)
    try:
        assert reference_of(pipeline) == "acme_orders:pipeline"
    finally:
        del sys.modules[module]


def test_a_scripts_own_pipeline_is_imported_by_the_files_name(monkeypatch):
    pipeline = Pipeline([STEP])
    main = ModuleType("__main__")
    main.pipeline, main.__file__ = pipeline, "/anywhere/orders.py"
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert reference_of(pipeline) == "orders:pipeline"


def test_an_interactive_sessions_pipeline_cannot_be_sent(monkeypatch):
    pipeline = Pipeline([STEP])
    main = ModuleType("__main__")
    main.pipeline = pipeline
    monkeypatch.setitem(sys.modules, "__main__", main)
    with pytest.raises(PipelineError, match="interactive session"):
        reference_of(pipeline)


def test_a_pipeline_is_looked_for_again_when_its_module_no_longer_holds_it():
    pipeline = Pipeline([STEP])
    for name in ("acme_orders", "acme_newer_orders"):
        module = hold(name, pipeline)
        try:
            assert reference_of(pipeline) == f"{name}:pipeline"
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(sys, "modules", Unlisted(sys.modules))
                assert reference_of(pipeline) == f"{name}:pipeline"
        finally:
            del sys.modules[module]
    with pytest.raises(PipelineError, match="not an attribute of a module"):
        reference_of(pipeline)


class Unlisted(dict):
    """Modules that are not looked through: that takes milliseconds."""

    def items(self):
        raise AssertionError("all modules are looked through")


def hold(name, pipeline):
    module = ModuleType(name)
    module.pipeline = pipeline
    sys.modules[name] = module
    return name
