"""The fixtures every test may ask for; those of services are in `support/services.py`."""

import gc
import importlib.metadata
import logging
import os
import signal
import sys
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "logfire-plugin")
"""Logfire, which few tests use, has a plugin that imports a third of what a worker does: in every process that builds a model."""

any_pace = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("check", derandomize=True, **any_pace)
settings.register_profile("search", print_blob=True, **any_pace)
settings.register_profile("brief", derandomize=True, max_examples=40, **any_pace)
settings.register_profile("fast", derandomize=True, max_examples=10, **any_pace)
settings.load_profile("check")
"""A check says the same of the same code every time; `make laws` looks for what no one has seen yet, `make test` at fewer examples of each
property, and `make test-fast` at a few. How busy the machine is says nothing of the code."""

pytest_plugins = ["tests.support.folders", "tests.support.forking", "tests.support.old_click", "tests.support.services"]

find_entry_points = importlib.metadata.entry_points
found_entry_points = cache(lambda _path, **which: find_entry_points(**which))
importlib.metadata.entry_points = lambda **which: found_entry_points(tuple(sys.path), **which)
"""Every command looks for those of extensions, in all that is installed: a fifth of what a command in this process costs."""


class Loggers(dict[str, Any]):
    """Loggers by name. pytest iterates over them before each test, without a lock, while threads add some."""

    def values(self):
        return [*super().values()]


logging.root.manager.loggerDict = Loggers(logging.root.manager.loggerDict)

signal.signal(signal.SIGINT, signal.default_int_handler)
"""A shell without job control has its background jobs ignore Ctrl-C, and so would every process that a test starts and then interrupts."""


def pytest_configure(config):
    """Make Hypothesis' examples independent of earlier tests: it would try the constants of all modules that the process has loaded."""
    if config.getoption("hypothesis_profile") != "search":
        assert hasattr(providers.HypothesisProvider, "_local_constants")
        providers.HypothesisProvider._local_constants = providers.Constants()


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is collected stays: thousands of tests and their modules are not searched for garbage, neither now nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        gc.set_threshold(50_000, 20, 100)  # what tests leave behind is little, and looked at seldom


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark every test that asks for real services, so that `make test-fast` leaves it out."""
    for item in items:
        if {"services", "services_to_break"} & set(item.fixturenames):
            item.add_marker("services")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Write captured text in UTF-8: half a character cannot be sent to another process."""
    report = yield
    report.sections = [(title, text.encode(errors="backslashreplace").decode()) for title, text in report.sections]
    return report


@pytest.fixture(autouse=True)
def _no_app_is_attached():
    """A test's app gives its settings to no other test."""
    from flujo_client.config.manager import ConfigManager

    yield
    ConfigManager.attached = None


def marked(node, name):
    """Return the keywords of a test's or module's markers of this name; the closest one has the last word."""
    return {key: value for marker in reversed([*node.iter_markers(name)]) for key, value in marker.kwargs.items()}


@pytest.fixture
def engine(request):
    """An engine of the test's own: a `LocalEngine`, with the settings in `pytest.mark.engine`, or the `kind` that it names."""
    from flujo_client import Settings
    from flujo_worker.testing import LocalEngine

    values = marked(request.node, "engine")
    kind = values.pop("kind", LocalEngine)
    with kind(Settings.model_validate(values)) as engine:
        yield engine


@pytest.fixture(scope="module")
def site(request, services, tmp_path_factory):
    """A site for the tests of a module. `pytest.mark.site` names its settings, and how many `workers` run what is in `code`."""
    from tests.support.fleet import STEADY, STEPS, Site

    values = {"worker": STEADY} | marked(request.node, "site")
    workers, code = values.pop("workers", 0), values.pop("code", STEPS)
    with Site(services, tmp_path_factory.mktemp("site"), **values) as site:
        if workers:
            site.workers(workers, code=code)
        yield site


@pytest.fixture
def own_workers(site):
    """Each test has the workers it started, and no others."""
    yield
    site.dismiss()


@pytest.fixture(autouse=True)
def logging_as_at_the_start():
    """What a test before this one told `logging`, by Celery's set-up or our own, does not hold for this one."""
    logging.disable(logging.NOTSET)
    _set_level(logging.root, logging.WARNING)
    for name, logger in logging.root.manager.loggerDict.copy().items():
        if name.startswith("flujo") and isinstance(logger, logging.Logger):
            logger.disabled, logger.propagate = False, True
            _set_level(logger, logging.NOTSET)


def _set_level(logger, level):
    """Only where it differs: each time it is set, `logging` forgets what every logger there is had worked out."""
    if logger.level != level:
        logger.setLevel(level)
