"""What `make check` leaves out for its length has a quick form that it runs."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
MARK = "pytest.mark.chaos"


def is_long(node):
    """Tell whether a test or a parameter is marked to run under `make chaos` alone."""
    return MARK in ast.unparse(node)


def calls(test):
    """Return the functions that a test calls."""
    return {node.func.id for node in ast.walk(test) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}


def without_quick_form(source):
    """Name the long tests of a module without a short parameter, and without a short test that calls the same function of the module."""
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    own = {each.name for each in functions}
    tests = [each for each in functions if each.name.startswith("test_")]
    short = [test for test in tests if not any(is_long(each) for each in test.decorator_list)]
    return [test.name for test in tests if test not in short and not has_quick_form(test, short, own)]


def has_quick_form(test, short, own):
    if any(ast.unparse(each) == MARK for each in test.decorator_list):
        return any(calls(test) & calls(other) & own for other in short)
    parameters = [each.args[1] for each in test.decorator_list if is_long(each)]
    return all(any(not is_long(value) for value in values.elts) for values in parameters)


MODULES = [path for path in sorted(TESTS.rglob("test_*.py")) if path.parent.name not in {"chaos", "architecture"}]
LONG = [path for path in MODULES if MARK in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", LONG, ids=lambda path: path.stem)
def test_each_test_that_is_left_out_has_a_quick_form(path):
    assert without_quick_form(path.read_text(encoding="utf-8")) == []


def test_there_are_such_tests():
    assert LONG


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("@pytest.mark.chaos\ndef test_a(): ...", ["test_a"]),
        ("@pytest.mark.chaos\ndef test_a(): go(9)\ndef test_b(): go(1)\ndef go(n): ...", []),
        ("@pytest.mark.chaos\ndef test_a(): go(9)\ndef test_b(): ...\ndef go(n): ...", ["test_a"]),
        ("@pytest.mark.parametrize('n', [pytest.param(9, marks=pytest.mark.chaos)])\ndef test_a(n): ...", ["test_a"]),
        ("@pytest.mark.parametrize('n', [1, pytest.param(9, marks=pytest.mark.chaos)])\ndef test_a(n): ...", []),
    ],
)
def test_a_quick_form_that_is_missing_would_be_found(source, found):
    assert without_quick_form(source) == found
