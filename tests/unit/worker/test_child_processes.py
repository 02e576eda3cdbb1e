"""Processes for work that may kill its process are forks of one that has imported Flujo, and report how they ended."""

import os
import signal

import pytest

from flujo_client.config.manager import Settings
from flujo_worker.recovery.child_processes import ChildProcesses

CHILD = """
import json, os, signal, sys, threading

def main(channel, act):
    channel.sendall(json.dumps({"parent": os.getppid(), "fresh": "flujo_worker.recovery.child_processes" not in sys.modules}).encode() + b"\\n")
    if act == "wait":
        threading.Event().wait()
    if act == "stop":
        channel.recv(64)
    if act == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(3)
"""
SITE = """
import threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
"""
LONG_S = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("child")
    (folder / "child_of_a_test.py").write_text(CHILD)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder


@pytest.fixture(scope="module")
def children(folder):
    children = ChildProcesses(Settings())
    yield children
    children.close()


@pytest.mark.parametrize(("act", "how"), [("exit", "exit code 3"), ("die", "signal SIGKILL")])
def test_its_messages_come_first_and_then_how_it_ended(children, act, how):
    child = children.start("child_of_a_test", act=act)
    assert child.message(LONG_S) == {"parent": children._server.pid, "fresh": False}
    assert child.message(LONG_S) is None
    assert child.end(LONG_S) == how


def test_one_that_is_asked_to_stop_ends_and_one_that_does_not_is_killed(children):
    asked, deaf = children.start("child_of_a_test", act="stop"), children.start("child_of_a_test", act="wait")
    assert asked.message(LONG_S)
    assert deaf.message(LONG_S)
    asked.stop()
    assert asked.end(LONG_S) == "exit code 3"
    assert deaf.end(2.0) == "signal SIGKILL"


def test_it_outlives_the_process_that_forked_it_and_others_are_forked_by_a_new_one(children):
    before = children.start("child_of_a_test", act="stop")
    forker = before.message(LONG_S)["parent"]
    os.kill(forker, signal.SIGKILL)
    children._server.wait()
    after = children.start("child_of_a_test", act="exit")
    assert after.message(LONG_S)["parent"] == children._server.pid != forker
    before.stop()
    assert before.end(LONG_S) == "in an unknown way"
    assert after.end(LONG_S) == "exit code 3"


def test_where_the_site_has_started_threads_each_is_a_fresh_interpreter(folder, monkeypatch):
    """A fork has no threads of its parent, and may wait for ever for a lock that one of them held."""
    (folder / "sitecustomize.py").write_text(SITE)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    children = ChildProcesses(Settings())
    child = children.start("child_of_a_test", act="exit")
    assert child.message(LONG_S) == {"parent": children._server.pid, "fresh": True}
    assert child.end(LONG_S) == "exit code 3"
    children.close()
