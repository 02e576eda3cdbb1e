"""What must never be in the product's code, and what it must depend on."""

import ast
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from requirements_page import checked_modules

ROOT = Path(__file__).parents[2]
SOURCES = sorted([*ROOT.glob("flujo_client/**/*.py"), *ROOT.glob("flujo_worker/**/*.py")])
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
TEST_LIBRARIES = {"pytest", "unittest", "mock", "hypothesis", "fakeredis"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SUITES = {
    "core execution": "unit/worker/test_containers_contract.py",
    "context": "unit/worker/test_merge_contexts.py",
    "serialization": "unit/client/test_serial_strict.py",
    "usage": "unit/worker/test_limits_in_engine.py",
    "integration": "integration/test_enqueue.py",
    "performance": "unit/worker/test_merge_bounds.py",
}


@cache
def sources() -> dict[str, tuple[list[str], set[str], set[str]]]:
    """Return what `read` finds in each source: they are parsed once."""
    return {path.relative_to(ROOT).as_posix(): read(path.read_text(encoding="utf-8")) for path in SOURCES}


def read(source: str) -> tuple[list[str], set[str], set[str]]:
    """Return the public classes of a source, what it imports, and its names of variables for tests."""
    nodes = [*ast.walk(ast.parse(source))]
    classes = [node.name for node in nodes if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    return classes, imported(nodes), environment(nodes)


def imported(nodes: list[ast.AST]) -> set[str]:
    """Return the libraries that a source imports, at any place."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


def environment(nodes: list[ast.AST]) -> set[str]:
    """Return the strings of a source that may name a variable which only tests set."""
    strings = [node.value for node in nodes if isinstance(node, ast.Constant)]
    return {each for each in strings if isinstance(each, str) and each.isupper() and "TEST" in each}


def names_of(requirements: list[str]) -> set[str]:
    return {Requirement(each).name for each in requirements}


def test_a_public_class_name_is_used_once():
    """A reader who searches for a class finds one."""
    names = Counter(name for classes, _, _ in sources().values() for name in classes)
    assert not {name for name, count in names.items() if count > 1}


def test_no_product_code_imports_what_tests_are_made_of():
    """U-28: a mock is known by its module's name alone. Embedded Redis may be fakeredis, a program there; users' tests get fixtures."""
    found = {path: names & TEST_LIBRARIES for path, (_, names, _) in sources().items()}
    assert {path: names for path, names in found.items() if names} == {
        "flujo_client/embedded/fake_redis.py": {"fakeredis"},
        "flujo_worker/pytest_plugin.py": {"pytest"},
    }
    assert read("def f():\n    from unittest.mock import Mock")[1] & TEST_LIBRARIES


def test_no_product_code_asks_whether_it_is_tested():
    """U-27: `FLUJO_TEST_MODE` is known only to be refused."""
    assert {path: names for path, (_, _, names) in sources().items() if names} == {
        "flujo_client/config/errors.py": {"FLUJO_TEST_MODE"}
    }
    assert read('if os.environ.get("PYTEST_CURRENT_TEST"): ...')[2]


def test_decoders_repairs_schemas_templates_and_yaml_come_from_libraries():
    """C-29, C-39: orjson and json-repair always, other decoders as an extra; no engine of our own for schemas, templates and YAML."""
    extras = PROJECT["optional-dependencies"]
    assert {"orjson", "pyyaml"} <= names_of(PROJECT["dependencies"])
    assert {"json-repair", "jsonschema-rs", "jinja2"} <= names_of(extras["worker"])
    assert "msgspec" in names_of(extras["aop-extra"])
    assert "msgspec" not in names_of([*PROJECT["dependencies"], *extras["worker"]])


def test_every_extra_is_imported_by_product_code():
    """What users install with `aop-extra` has to do something for them."""
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "flujo_worker").rglob("*.py"))
    names = names_of(PROJECT["optional-dependencies"]["aop-extra"])
    assert {name for name in names if f"import {name}" not in sources} == set()


def test_blanket_handlers_are_seen_by_the_linter():
    """U-34: each one says why it is right; the linter's rules against them are on for product code."""
    lint = PYPROJECT["tool"]["ruff"]["lint"]
    product = [rules for paths, rules in lint["per-file-ignores"].items() if "tests" not in paths]
    assert "ALL" in lint["select"]
    assert not {"BLE", "BLE001", "S110", "S112", "TRY"} & {
        rule for rules in [lint["ignore"], *product] for rule in rules
    }


@pytest.mark.parametrize("suite", SUITES)
def test_each_category_has_its_suite(suite):
    """M-464: more than a test or two, which `make check` runs."""
    path = ROOT / "tests" / SUITES[suite]
    assert path in checked_modules()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tests = [each for each in ast.walk(tree) if isinstance(each, FUNCTIONS) and each.name.startswith("test_")]
    assert len(tests) >= 3
