"""The matrix tries what the package allows, and its page shows what the matrix tries."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement

from tests.compat.rows import LOWEST, ROOT, ROWS

PAGE = (ROOT / "docs/reference/compatibility.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ALLOWED = {need.name: need.specifier for need in map(Requirement, PROJECT["dependencies"])}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_each_row_is_allowed_locked_and_on_the_page(row):
    own = row.lock.read_text(encoding="utf-8")
    for pin in map(Requirement, row.pins):
        [exactly] = pin.specifier
        assert exactly.version in ALLOWED[pin.name]
        assert f"{pin} \\\n" in own
    assert f"| {row.celery} | {row.kombu} | {row.redis} |" in PAGE


@pytest.mark.parametrize("pin", LOWEST.pins)
def test_the_oldest_that_is_allowed_is_tried(pin):
    name, _, version = pin.partition("==")
    [least] = [each.version for each in ALLOWED[name] if each.operator == ">="]
    assert version in ALLOWED[name]
    assert version.startswith(least)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_what_a_row_locks_replaces_what_everyone_has(row):
    requirements = row.requirements()
    for name in ("celery", "kombu", "redis", "billiard"):
        assert len(re.findall(rf"^{name}==", requirements, re.MULTILINE)) == 1
    assert re.search(r"^pydantic==.*\n +--hash=", requirements, re.MULTILINE)
