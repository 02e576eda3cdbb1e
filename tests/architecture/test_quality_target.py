"""One documented command checks what CI checks, and coverage has a floor (M-208, M-152)."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEVELOPMENT = (ROOT / "docs/development.md").read_text(encoding="utf-8")
MEASURED = re.compile(r"On \d{4}-\d\d-\d\d .* ran (\d+) % of all lines and branches", re.DOTALL)


def commands(target: str) -> str:
    """What a target of the Makefile runs, without running it."""
    asked = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    return asked.stdout


@pytest.mark.parametrize("tool", ["ruff format --check", "ruff check", "mypy", "lint-imports", "pytest"])
def test_one_command_runs_lint_types_imports_and_tests(tool):
    """M-208: `make check`, as docs/development.md documents it."""
    assert tool in commands("check")
    assert "| `make check` |" in DEVELOPMENT


def test_the_floor_of_coverage_is_near_the_published_figure():
    """`make coverage` measures and fails below the floor. CI does not run it: the figure is published with its date."""
    floor = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["coverage"]["report"]["fail_under"]
    measured = MEASURED.search(DEVELOPMENT)
    assert measured is not None
    assert 0 <= int(measured[1]) - floor <= 3
    assert f"fails below {floor} %" in DEVELOPMENT
    assert "--cov " in commands("coverage")


def test_types_are_checked_strictly_everywhere():
    """M-152: all of both packages, the configuration with them, under `mypy --strict`."""
    mypy = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert mypy["strict"] is True
    assert {"flujo_client", "flujo_worker"} <= set(mypy.get("packages", mypy.get("files", ())))
    assert "overrides" not in mypy or not any("config" in str(each) for each in mypy["overrides"])
