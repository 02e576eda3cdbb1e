"""The private names of Celery, kombu and redis-py that a worker uses are still there, in whatever versions are installed."""

import inspect
import re
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.version import Version

import flujo_worker.celery_app
from flujo_worker.celery_app.consumer.private_names import NAMES, NEWER, READ_IN

EACH = [(owner, name) for owner, names in NAMES.items() for name in names]
LATER = [(owner, name, since) for owner, names in NEWER.items() for name, since in names.items()]


def has(owner, name):
    """Whether a module, a class or its instances have a name."""
    module, _, attribute = owner.partition(":")
    found = import_module(module)
    found = getattr(found, attribute) if attribute else found
    if hasattr(found, name):
        return True
    bases = [each for each in getattr(found, "__mro__", ()) if each is not object]
    return any(re.search(rf"\bself\.{name}\b", inspect.getsource(each)) for each in bases)


@pytest.mark.parametrize(("owner", "name"), EACH, ids=[f"{owner}.{name}" for owner, name in EACH])
def test_each_private_name_is_there(owner, name):
    assert has(owner, name), f"{owner} has lost {name}, which was read in {READ_IN[owner.partition('.')[0]]}"


@pytest.mark.parametrize(("owner", "name", "since"), LATER, ids=[f"{owner}.{name}" for owner, name, _ in LATER])
def test_a_newer_name_is_there_since_its_version(owner, name, since):
    """A name that comes back, or that an earlier version has, would lead to code that was never run with it."""
    assert has(owner, name) == (Version(version(owner.partition(".")[0])) >= Version(since))


def test_a_name_that_is_gone_would_be_seen():
    assert not has("kombu.transport.redis:Channel", "_brpop_never")


def test_no_other_module_of_the_worker_uses_a_private_name_of_theirs():
    names = {name for table in (NAMES, NEWER) for names in table.values() for name in names if name.startswith("_")}
    used = {
        (path.name, name)
        for path in Path(flujo_worker.celery_app.__file__).parent.rglob("*.py")
        if path.name != "private_names.py"
        for name in names
        if re.search(rf"\.{name}\b", path.read_text(encoding="utf-8"))
    }
    assert used == set()
