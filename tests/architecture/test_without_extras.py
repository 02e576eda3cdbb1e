"""The tests that need no service pass where only `flujo-worker[worker]` and what tests need is installed, without the optional decoders."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.installation

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MODULES = [Requirement(each).name for each in PROJECT["optional-dependencies"]["aop-extra"]]
RUN = """
import sys
import pytest
sys.modules.update(dict.fromkeys({modules}))
raise SystemExit(pytest.main({arguments}))
"""


def pytest_without(modules, *arguments):
    """Run pytest in a process that cannot import some modules."""
    code = RUN.format(modules=modules, arguments=[*arguments, "-q", "-p", "no:cacheprovider", "-p", "no:xdist"])
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)


def test_every_test_can_be_collected_without_the_optional_decoders():
    """No test file imports an extra; those that need one skip."""
    told = pytest_without(MODULES, "--collect-only", "tests")
    assert told.returncode == 0, told.stdout[-3000:]


def test_what_reads_and_types_outputs_passes_without_them():
    """M-105, C-42: the fast path by `msgspec` is passed by, `TypeAdapter` stays, and nothing else changes."""
    told = pytest_without(MODULES, "tests/unit/worker/test_typed.py", "tests/aros/test_aros_decode.py")
    assert told.returncode == 0, told.stdout[-3000:]
    assert "passed" in told.stdout


def test_a_file_that_imports_an_extra_is_seen(tmp_path):
    (tmp_path / "test_it.py").write_text(f"import {MODULES[0]}\n\n\ndef test_it():\n    pass\n")
    assert pytest_without(MODULES, str(tmp_path), "-c", "/dev/null").returncode != 0
