"""A user's file with the name of an installed package is named wherever the failed import is reported."""

import importlib
import sys

import pytest
from click.testing import CliRunner

from flujo_client.cli.main import cli
from flujo_client.errors import PipelineError
from flujo_client.pipeline.reference import load_pipeline
from flujo_client.shadowed import rename_advice
from flujo_worker.runtime.faults import describe


@pytest.fixture
def shadow(tmp_path, monkeypatch):
    """Write a file of a package's name into a folder that comes first in the search path."""
    monkeypatch.syspath_prepend(tmp_path)
    before = dict(sys.modules)

    def write(package, text="x = 1\n"):
        for name in [each for each in sys.modules if each.partition(".")[0] == package]:
            monkeypatch.delitem(sys.modules, name)
        (tmp_path / f"{package}.py").write_text(text)
        importlib.invalidate_caches()
        return f"rename {tmp_path / package}.py: Python imports it in place of the package '{package}'"

    yield write
    for name in sys.modules.keys() - before.keys():
        del sys.modules[name]


def failure(statement):
    with pytest.raises((ImportError, AttributeError)) as raised:
        exec(statement, {})
    return raised.value


@pytest.mark.parametrize(
    ("package", "statement"),
    [
        ("openai", "from openai import AsyncOpenAI"),
        ("celery", "import celery.concurrency"),
        ("openai", "import openai; openai.AsyncOpenAI"),
        ("secrets", "from secrets import token_hex"),
    ],
)
def test_the_file_is_named(shadow, package, statement):
    advice = shadow(package)
    error = failure(statement)
    assert rename_advice(error) == advice
    assert rename_advice(RuntimeError("wrapped")) is None
    assert describe(error, during="agent").suggestion == advice


@pytest.mark.parametrize(
    "statement", ["from json import nothing", "import no_such_module", "None.x", "import own; own.nothing"]
)
def test_any_other_error_is_left_alone(tmp_path, shadow, statement):
    (tmp_path / "own.py").write_text("")
    assert rename_advice(failure(statement)) is None


def test_a_pipelines_import_and_the_command_line_name_it(shadow, tmp_path):
    advice = shadow("openai")
    (tmp_path / "shop_of_shadows.py").write_text("from openai import AsyncOpenAI\n")
    with pytest.raises(PipelineError) as raised:
        load_pipeline("shop_of_shadows:pipeline", allowed=["*"])
    assert raised.value.suggestion == advice
    done = CliRunner().invoke(cli, ["validate", "shop_of_shadows:pipeline"])
    assert "rename " in done.output
