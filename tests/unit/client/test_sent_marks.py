"""Marks of what was published: written in batches, waited for by no one (M-010)."""

import subprocess
import sys
import threading

import pytest

from flujo_client.gateway import post
from flujo_client.gateway.post import MarkThread

ENDS = """
import sys, threading, time
from flujo_client.gateway import post
from flujo_client.gateway.post import MarkThread

post.MARK_AFTER_S = 60.0

def mark(ages):
    {mark}
    print(sorted(ages), flush=True)

marks = MarkThread(mark)
marks.add(["a"], time.monotonic())
marks.add(["b"], time.monotonic())
"""


def test_keys_that_come_close_together_are_marked_at_once_with_their_ages(monkeypatch):
    monkeypatch.setattr(post, "MARK_AFTER_S", 1.0)
    written, is_written = [], threading.Event()
    marks = MarkThread(lambda ages: written.append(ages) or is_written.set())
    marks.add(["a", "b"], 0.0)
    marks.add(["c"], 1.0)
    assert is_written.wait(60)
    assert len(written) == 1
    assert written[0].keys() == {"a", "b", "c"}
    assert written[0]["a"] == written[0]["c"] + 1.0
    is_written.clear()
    marks.add(["d"], 0.0)
    assert is_written.wait(60)
    assert written[1].keys() == {"d"}


def test_finishing_writes_what_there_is():
    written = []
    marks = MarkThread(written.append)
    marks.add(["a"], 0.0)
    marks.finish()
    assert [each.keys() for each in written] == [{"a"}]


@pytest.mark.processes
def test_a_process_that_ends_marks_first():
    ended = subprocess.run(
        [sys.executable, "-c", ENDS.format(mark="")], check=False, capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (0, "['a', 'b']\n"), ended.stderr


@pytest.mark.processes
def test_marks_that_cannot_be_written_do_not_keep_a_process_from_ending():
    """Postgres does not answer, say: the marks are lost, and cost a doubled message each."""
    stuck = ENDS.format(mark="threading.Event().wait()")
    ended = subprocess.run([sys.executable, "-c", stuck], check=False, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
