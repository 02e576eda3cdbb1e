"""`--forks N`: run tests in N processes, forked once everything is collected, so that importing and collecting is done once.

A module runs in one process: its database, its workers and what its fixtures have worked out serve all its tests. Tests that start workers
mostly wait, all others compute. So most processes take modules from the front of the list, where those are that wait, and one in four from the
end, where those are that compute: the cores are busy from the beginning, and no long module is left for last. The
processes share one nursery of workers.
"""

import atexit
import io
import os
import traceback
import warnings
from collections import deque
from collections.abc import Iterable
from itertools import groupby, pairwise
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import pytest

from tests.support.nursery import nursery

WAITING = {"acceptance", "integration"}
SHORT = {"aros", "unit"}
"""Folders of modules that wait, and of those that mostly take less than a second. All others compute for seconds."""

LONGEST = {
    "test_quarantine.py",
    "test_rolling_restarts.py",
    "test_other_code.py",
    "test_stuck_code.py",
    "test_celery_app.py",
}
"""Modules that wait for half a minute or more. They come first."""

GROUP = 4
"""Of so many processes the last one begins at the end of the list."""


def pytest_addoption(parser):
    parser.addoption("--forks", type=int, metavar="N", help="run tests in N forked processes")


def pytest_configure(config):
    if config.getoption("forks"):
        config.pluginmanager.register(Forks(config.getoption("forks")))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items):
    """Order what is left after all choices."""
    result = yield
    items[:] = in_order(items)
    return result


def in_order(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Return modules that wait first, then short ones, and last those that compute for seconds."""
    return [test for tests in sorted(_modules(items), key=_rank) for test in tests]


def _modules(items: Iterable[pytest.Item]) -> list[list[pytest.Item]]:
    return [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]


def _rank(tests: list[pytest.Item]) -> int:
    path = tests[0].path
    if path.name in LONGEST:
        return 0
    return 1 if WAITING & set(path.parts) else 2 if SHORT & set(path.parts) else 3


class Process(NamedTuple):
    """A test process, as its parent knows it."""

    number: int
    pid: int
    pipe: Connection


class Forks:
    """Fork the test processes, give each of them one module after the other, and report what they send."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.left: deque[int] = deque()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed or session.config.option.collectonly:
            return None
        session.config._tmp_path_factory.getbasetemp()  # creates it
        if any(item.get_closest_marker("acceptance") for item in session.items):
            nursery()
        modules = _modules(session.items)
        self.left.extend(range(len(modules)))
        processes: list[Process] = []
        try:
            for number in range(self.count):
                processes.append(self._fork(session, modules, number, processes))
            while processes:
                for process in wait([each.pipe for each in processes]):
                    self._hear(session, next(each for each in processes if each.pipe is process), processes)
        finally:
            for process in processes:  # they were interrupted: each ends when it finds its pipe closed
                process.pipe.close()
                os.waitpid(process.pid, 0)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        return True

    def next_module(self, number: int) -> int | None:
        """Return the module that this process runs next, and None when none is left."""
        if not self.left:
            return None
        return self.left.pop() if number % GROUP == min(GROUP, self.count) - 1 else self.left.popleft()

    def _fork(self, session: pytest.Session, modules: list[Any], number: int, others: list[Process]) -> Process:
        ours, theirs = Pipe()
        if (pid := os.fork()) == 0:
            for pipe in (ours, *(each.pipe for each in others)):  # what is open here would not end with its process
                pipe.close()
            _run(session, modules, theirs, number, self.count)
        theirs.close()
        return Process(number, pid, ours)

    def _hear(self, session: pytest.Session, process: Process, processes: list[Process]) -> None:
        try:
            calls = process.pipe.recv()
        except EOFError:
            processes.remove(process)
            if status := os.waitpid(process.pid, 0)[1]:
                session.shouldfail = f"test process {process.number} ended with {os.waitstatus_to_exitcode(status)}"
            return
        if calls is None:
            process.pipe.send(None if session.shouldfail or session.shouldstop else self.next_module(process.number))
            return
        for name, values in calls:
            if name == "pytest_warning_recorded":
                values["warning_message"] = warnings.WarningMessage(*values["warning_message"])
                session.config.hook.pytest_warning_recorded.call_historic(kwargs=values)
            else:
                getattr(session.config.hook, name)(**values)


class Messenger:
    """In a test process: send the parent what the hooks that report are called with, all of a test at once."""

    def __init__(self, config: pytest.Config, pipe: Connection) -> None:
        self.config, self.pipe = config, pipe
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def pytest_runtest_logstart(self, nodeid, location):
        self.calls.append(("pytest_runtest_logstart", {"nodeid": nodeid, "location": location}))

    def pytest_runtest_logreport(self, report):
        self.calls.append(("pytest_runtest_logreport", {"report": report}))

    def pytest_warning_recorded(self, warning_message, when, nodeid, location):
        of = warning_message
        values = {
            "warning_message": (str(of.message), of.category, of.filename, of.lineno),
            "when": when,
            "nodeid": nodeid,
            "location": location,
        }
        self.calls.append(("pytest_warning_recorded", values))

    def pytest_runtest_logfinish(self, nodeid, location):
        self.calls.append(("pytest_runtest_logfinish", {"nodeid": nodeid, "location": location}))
        self.pipe.send(self.calls)
        self.calls = []

    def next_module(self) -> int | None:
        """Ask the parent for one."""
        self.pipe.send(None)
        return self.pipe.recv()


def _run(session: pytest.Session, modules: list[list[pytest.Item]], pipe: Connection, number: int, count: int) -> None:
    """Be a test process, and end."""
    status = 1
    try:
        messenger = Messenger(session.config, pipe)
        _separate(session.config, number, count)
        session.config.pluginmanager.register(messenger)
        index = messenger.next_module()
        while index is not None:
            *_, last = modules[index]
            for test, following in pairwise(modules[index]):
                session.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
            index = messenger.next_module()  # before the last test, which tears down what the next module does not use
            following = None if index is None else modules[index][0]
            session.config.hook.pytest_runtest_protocol(item=last, nextitem=following)
        status = 0
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        status = 2  # the parent is gone, or was interrupted
    finally:
        if status == 1:
            traceback.print_exc()
        session._setupstate.teardown_exact(None)
        atexit._run_exitfuncs()
        os._exit(status)


def _separate(config: pytest.Config, number: int, count: int) -> None:
    """Give this process a number, a folder and captured output of its own, and have it print nothing."""
    os.environ |= {"PYTEST_XDIST_WORKER": f"gw{number}", "PYTEST_XDIST_WORKER_COUNT": str(count)}  # as xdist does
    factory = config._tmp_path_factory
    factory._basetemp = factory._basetemp / f"gw{number}"
    factory._basetemp.mkdir(mode=0o700)
    config.get_terminal_writer()._file = io.StringIO()
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture()
