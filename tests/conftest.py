"""The fixtures every test may ask for. pytest puts this folder on the path, so `services` is tests/services.py."""

from __future__ import annotations

import gc
import logging
from itertools import chain, groupby

import pytest
from hypothesis import HealthCheck, settings

any_pace = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("check", derandomize=True, **any_pace)
settings.register_profile("search", print_blob=True, **any_pace)
settings.register_profile("fast", derandomize=True, max_examples=20, **any_pace)
settings.load_profile("check")
"""A check says the same of the same code every time; `make laws` looks for what no one has seen yet, `make test-fast` at a few examples of each
property. How busy the machine is says nothing of the code."""

pytest_plugins = ["services"]


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is collected stays: thousands of tests and their modules are not searched for garbage, neither now nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()
        gc.set_threshold(10_000)  # as workers do


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items):
    """Mark every test that asks for real services, so that `make test-fast` leaves it out. Order what is left after all choices."""
    for item in items:
        if {"services", "services_to_break"} & set(item.fixturenames):
            item.add_marker("services")
    result = yield
    from services import PROCESSES  # pytest itself loads this plugin first

    items[:] = slow_modules_first(items, PROCESSES)
    return result


def slow_modules_first(items, processes):
    """Let each test process begin with its share of the modules that start workers, and end with tests that take milliseconds.

    pytest-xdist splits the tests into equal parts, one for each process, in this order. It takes tests back from the end of a part.
    """
    slow, rest = [], []
    for _, module in groupby(items, key=lambda item: item.path):
        tests = list(module)
        if any(test.get_closest_marker("acceptance") for test in tests):
            slow.append(tests)
        else:
            rest += tests
    ordered = []
    for process in range(processes):
        first = list(chain.from_iterable(slow[process::processes]))
        room = max(0, (len(items) - len(ordered)) // (processes - process) - len(first))
        ordered += first + rest[:room]
        del rest[:room]
    return ordered + rest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Write captured text in UTF-8: xdist ends the whole run at a report with half a character in it."""
    report = yield
    report.sections = [(title, text.encode(errors="backslashreplace").decode()) for title, text in report.sections]
    return report


@pytest.fixture(autouse=True)
def logging_as_at_the_start():
    """What a test before this one told `logging`, by Celery's set-up or our own, does not hold for this one."""
    logging.disable(logging.NOTSET)
    _set_level(logging.root, logging.WARNING)
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if name.startswith("flujo") and isinstance(logger, logging.Logger):
            logger.disabled, logger.propagate = False, True
            _set_level(logger, logging.NOTSET)


def _set_level(logger, level):
    """Only where it differs: each time it is set, `logging` forgets what every logger there is had worked out."""
    if logger.level != level:
        logger.setLevel(level)
