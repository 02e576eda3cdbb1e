"""Which test process runs which module, and what is reported of it (`tests/support/forking.py`)."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.folders import MARKS, left_out
from tests.support.forking import LONGEST, Forks, in_order

TESTS = Path(__file__).parents[1]
MODULES = {
    "test_a.py": """
        import os, warnings
        def test_one(): warnings.warn("odd")
        def test_two(): print("said"); assert os.getpid() == 0
        """,
    "test_b.py": """
        import os, pytest
        @pytest.fixture(scope="session")
        def kept(tmp_path_factory):
            yield
            (tmp_path_factory.getbasetemp().parent / "torn_down").touch()
        def test_three(kept): pytest.skip("not here")
        def test_four(tmp_path): assert os.environ["PYTEST_XDIST_WORKER"] == tmp_path.parent.name
        """,
}


@pytest.mark.parametrize(
    ("processes", "first"), [(1, ["f"]), (2, ["a", "f"]), (4, ["a", "b", "c", "f"]), (5, ["a", "b", "c", "f", "d"])]
)
def test_the_last_of_four_processes_begins_at_the_end(processes, first):
    forks = Forks(processes)
    forks.left.extend("abcdef")
    assert [forks.next_module(number) for number in range(processes)] == first
    assert len(list(iter(lambda: forks.next_module(0), None))) == 6 - processes


def test_modules_that_wait_come_first_and_those_that_compute_last():
    paths = [
        "acceptance/test_a.py",
        "laws/test_b.py",
        "acceptance/test_quarantine.py",
        "unit/test_c.py",
        "fuzz/test_d.py",
    ]
    tests = [SimpleNamespace(path=TESTS / path, name=name) for path in paths for name in ("x", "y")]
    ordered = in_order(tests)
    assert [each.path.name for each in ordered[::2]] == [
        "test_quarantine.py", "test_a.py", "test_c.py", "test_b.py", "test_d.py"
    ]  # fmt: skip
    assert [each.name for each in ordered] == ["x", "y"] * 5


def test_the_longest_modules_exist():
    assert {each.name for each in TESTS.rglob("test_*.py")} >= LONGEST


@pytest.mark.parametrize("folder", MARKS)
def test_all_modules_of_a_folder_that_may_be_ignored_have_its_marks(folder):
    modules = [*(TESTS / folder).rglob("test_*.py")]
    assert modules
    for module in modules:
        [marks] = [
            ast.unparse(node.value)
            for node in ast.parse(module.read_text(encoding="utf-8")).body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
        ]
        assert MARKS[folder] & {*re.findall(r"pytest\.mark\.(\w+)", marks)}, module


def test_what_a_choice_of_marks_leaves_out():
    assert left_out("not large and not pages and chaos") == {"large", "pages"}
    assert left_out("(large or not browser) and not not pages") == set()
    assert left_out("") == set()


def forked(folder, modules):
    """Run modules in two forked processes; return the exit code and what was printed."""
    for name, text in modules.items():
        (folder / name).write_text("\n".join(line[8:] for line in text.splitlines()))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.support.forking",
        "-p",
        "no:cacheprovider",
        "--forks",
        "2",
        "-ra",
    ]
    environment = {**os.environ, "PYTHONPATH": str(TESTS.parent), "PYTEST_ADDOPTS": ""}
    ran = subprocess.run(
        [*command, f"--basetemp={folder / 'base'}", str(folder)],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=60
    )  # fmt: skip
    return ran.returncode, ran.stdout


@pytest.mark.large
@pytest.mark.processes
def test_what_each_process_finds_is_reported_once(tmp_path):
    code, printed = forked(tmp_path, MODULES)
    assert code == 1
    assert "1 failed, 2 passed, 1 skipped, 1 warning" in printed
    assert "FAILED test_a.py::test_two" in printed
    assert "UserWarning: odd" in printed
    assert printed.count("\nsaid\n") == 1
    assert (tmp_path / "base/torn_down").exists()


@pytest.mark.large
@pytest.mark.processes
def test_a_process_that_dies_fails_the_run(tmp_path):
    dying = {**MODULES, "test_c.py": "        def test_five(): __import__('os').kill(__import__('os').getpid(), 9)"}
    code, printed = forked(tmp_path, dying)
    assert code != 0
    assert "ended with -9" in printed
