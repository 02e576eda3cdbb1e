"""Digests of bodies: comments, whitespace and docstrings do not count, everything else that a body says does."""

import importlib.util
import subprocess
import sys

import pytest

from flujo_worker.changed_code.parts import body_digest

BODY = """
SCALE = 10

def helper(x):
    return x * SCALE

def rate(text):
    return helper(len(text)) in {"a", "b"}

class Judge:
    limit = 1
    def run(self, data):
        return data

loud = lambda text: text.upper()
"""


@pytest.fixture
def digest(tmp_path):
    """Digest `name` of a module with this text; each is a separate file."""
    made = []

    def digest_of(text, name="rate"):
        path = tmp_path / f"judge_{len(made)}.py"
        made.append(path)
        path.write_text(text)
        return body_digest(getattr(imported(path), name))

    return digest_of


def imported(path):
    spec = importlib.util.spec_from_file_location("judge", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "text",
    [
        BODY.replace("def rate(text):\n", 'def rate(text):\n    """Rate it."""\n    # as told\n\n'),
        BODY.replace("helper(len(text))", "helper(\n        len(text)\n    )"),
        BODY.replace("limit = 1", "limit = 2"),
        "import os\n\n\n" + BODY,
    ],
)
def test_what_a_body_does_not_say_does_not_count(digest, text):
    assert digest(text) == digest(BODY)


@pytest.mark.parametrize(
    "text",
    [BODY.replace("len(text)", "len(text) + 1"), BODY.replace("SCALE = 10", "SCALE = 100"), BODY.replace("x *", "x +")],
)
def test_a_body_counts_with_what_it_uses_of_its_module(digest, text):
    """The published case: a scale that changed."""
    assert digest(text) != digest(BODY)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [("Judge", "limit = 1", "limit = 2"), ("loud", "upper", "lower"), ("Judge", "return data", "return 0")],
)
def test_classes_and_lambdas_have_bodies_too(digest, name, old, new):
    assert digest(BODY, name) == digest(BODY, name)
    assert digest(BODY.replace(old, new), name) != digest(BODY, name)


def test_what_runs_counts_and_not_what_its_file_says_by_now(tmp_path):
    path = tmp_path / "judge.py"
    path.write_text(BODY)
    old = imported(path)
    path.write_text(BODY.replace("len(text)", "len(text) + 100"))
    edited = tmp_path / "edited.py"
    edited.write_text(BODY.replace("len(text)", "len(text) + 100"))
    assert body_digest(old.rate) != body_digest(imported(edited).rate)


def test_every_process_says_the_same(tmp_path):
    """Also of lambdas and of sets, whose order differs from process to process."""
    path = tmp_path / "judge.py"
    path.write_text(BODY + "\npicks = lambda x: x in {'a', 'b', 'c', 'd', 'e'}\n")
    asks = "import judge; from flujo_worker.changed_code.parts import body_digest; print(*map(body_digest, (judge.rate, judge.picks, judge.Judge)))"
    told = {
        subprocess.run(
            [sys.executable, "-c", asks],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": str(seed)},
        ).stdout
        for seed in (1, 2)
    }
    assert len(told) == 1
    assert "None" not in told.pop()


def test_what_is_not_written_in_python_has_no_body():
    assert body_digest(len) is None
    assert body_digest(int) is None
