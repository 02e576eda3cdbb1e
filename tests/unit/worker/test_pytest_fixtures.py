"""pytest's fixtures for users: an engine that is closed after the test, with settings that a project can replace."""

import subprocess
import sys

import pytest

from flujo_client import Pipeline, Settings, Step
from flujo_client.errors import PipelineError


def greet(name: str) -> str:
    return f"Hello, {name}"


pipeline = Pipeline([Step("greet", greet)])


def test_an_engine_is_there_without_any_import(flujo_engine):
    assert flujo_engine.run(pipeline, "Ada").output == "Hello, Ada"


class TestSettings:
    @pytest.fixture
    def flujo_settings(self):
        return Settings(allowed_imports=("shop",))

    def test_a_project_replaces_them(self, flujo_engine):
        with pytest.raises(PipelineError, match="shop"):
            flujo_engine.run(Pipeline([Step("greet", "builtins:len")]), "Ada")


def test_pytest_loads_little_for_it_where_it_is_not_used():
    code = "import pytest, flujo_worker.pytest_plugin, sys; print({'celery', 'pydantic', 'pydantic_ai', 'psycopg'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
