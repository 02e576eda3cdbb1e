"""What a process finds that it cannot do any more, and that a sound one finds nothing."""

import json
import os
import resource
import threading

import pytest

from flujo_worker.liveness.self_check import SelfCheck


@pytest.fixture
def running():
    return [True]


@pytest.fixture
def found():
    return []


@pytest.fixture
def check(running, found):
    return SelfCheck(lambda: running[0], found.append)


def test_a_sound_process_finds_nothing(check, found, monkeypatch):
    check.look_fully()
    monkeypatch.setattr(json, "dumps", lambda value, **_: json.JSONEncoder(indent=1).encode(value).encode())
    check.look_fully()
    assert found == []


def test_a_process_that_can_open_nothing_more(check, found):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        check.look()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert found == ["OSError: [Errno 24] Too many open files"]


def test_a_process_whose_descriptors_were_closed(check, found):
    """Also when others have taken their numbers since."""
    number = check._kept.fileno()
    kept = os.dup(number)
    os.close(number)
    check.look()
    other = os.open(os.devnull, os.O_RDONLY)
    if other != number:
        os.dup2(other, number)
        os.close(other)
    check.look()
    os.dup2(kept, number)
    os.close(kept)
    check.look()
    assert found == ["OSError: [Errno 9] Bad file descriptor", "its descriptors were closed"]


def raising(*_, **__):
    raise TypeError("patched")


@pytest.mark.parametrize(
    ("patched", "said"),
    [(raising, "TypeError: patched"), (lambda *_, **__: "{}", "`json.dumps` or `json.loads` was replaced")],
)
def test_a_process_with_another_json_dumps(check, found, monkeypatch, patched, said):
    monkeypatch.setattr(json, "dumps", patched)
    check.look()
    assert found == [said]


def test_a_process_that_can_start_nothing_more(check, found, monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", lambda _: raising())
    check.look_fully()
    assert found == ["TypeError: patched"]


def test_a_process_whose_loop_has_ended(check, found, running):
    running[0] = False
    check.look_fully()
    assert found == ["its event loop has ended"]
