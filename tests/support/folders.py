"""Folders that a run leaves out are not imported: their tests need libraries that no other test does, and those are slow to import."""

import re

MARKS = {
    "integrations": {"integrations"},
    "page": {"browser"},
    "pages": {"pages", "release"},
    "stopwatch": {"integrations"},
}
"""Folders of `tests/`, each of whose modules has one of these marks."""


def pytest_ignore_collect(collection_path, config):
    """Ignore a folder if `-m` leaves out all its tests."""
    marks = MARKS.get(collection_path.name) if collection_path.parent.name == "tests" else None
    return True if marks and marks <= left_out(config.option.markexpr) else None


def left_out(choice):
    """Return the marks that a choice such as `large and not chaos and not pages` leaves out."""
    terms = choice.split(" and ")
    return {found[1] for term in terms if (found := re.fullmatch(r"\s*not (\w+)\s*", term))}
