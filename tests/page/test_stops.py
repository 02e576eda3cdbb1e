"""Runs of a real fleet that stop in many ways: each sentence names place, cause and what moves it, word for word."""

import json
import re
from fnmatch import fnmatchcase
from functools import cache

import httpx
import pytest
from click.testing import CliRunner
from stopped_fleet import HERE
from truths import STOPS

from flujo_client.cli.main import cli

pytestmark = [pytest.mark.services, pytest.mark.acceptance, pytest.mark.browser]
MEASURED = {
    r"(?<=Done in )[\d.]+ \w+( \d+ \w+)?|(?<=own code after )[\d.]+ \w+": "<took>",
    r"\b\d{4}-\d\d-\d\d\b": "<day>",
    r"(\d+ \w{3} )?\d\d:\d\d(:\d\d)? \([^)]*\)": "<at>",
}


@pytest.fixture(scope="module")
def as_truth(fleet):
    """Write a sentence as `truths.py` does."""
    runs, workers = fleet.named(), fleet.workers()

    def write(sentence):
        text = sentence.text
        for part in sentence.parts:
            if part.run is not None:
                text = text.replace(part.text.strip(), f"<{runs[part.run]}>")
        for worker in workers:
            text = text.replace(worker, "<worker>")
        for pattern, name in MEASURED.items():
            text = re.sub(pattern, name, text)
        return text

    return write


def with_lines(truth):
    """Write `desk.py:<text>` with the number of the line that has the text."""
    return re.sub(r"desk\.py:<(.+?)>", lambda found: f"desk.py:{line_of(found[1])}", truth)


@cache
def line_of(text):
    lines = (HERE / "desk.py").read_text(encoding="utf-8").splitlines()
    [number] = [number for number, line in enumerate(lines, start=1) if text in line]
    return number


@pytest.mark.parametrize("name", STOPS)
def test_a_sentence_tells_the_truth_about_a_stop(fleet, as_truth, name):
    truth, run = STOPS[name], fleet.runs[name]
    sentence = fleet.sentences[run.id]
    assert as_truth(sentence) == with_lines(truth.sentence)
    assert (sentence.cause, sentence.tone) == (truth.cause, truth.tone)
    assert fnmatchcase(sentence.place, f"{run.id}:{truth.place}" if truth.place else "")
    fix = sentence.fix.replace(run.id, "RUN")
    assert (fix, sentence.acts, sentence.until is not None) == (truth.fix, truth.acts, truth.moves_itself)


def test_a_handle_the_page_and_the_command_say_the_same(fleet, page):
    """One value is behind them all."""
    runs = {run.id: run for name, run in fleet.runs.items() if not STOPS[name].moves_itself}
    shown = {run: httpx.get(f"{page}/runs/{run}", params={"format": "json"}).json() for run in runs}
    command = ["lens", "list", "--json", "--limit", "500"]
    listed = CliRunner().invoke(cli, command, env=fleet.site.settings.as_environment())
    found = {each["id"]: each["explanation"] for each in json.loads(listed.stdout)}
    for run, handle in runs.items():
        expected = without_clock(fleet.sentences[run].to_tree())
        assert without_clock(handle.explain().to_tree()) == expected
        assert without_clock(shown[run]["sentence"]) == expected
        assert without_clock(found[run]) == expected


def without_clock(tree):
    """Leave out the text, whose times are as long ago as they are."""
    return {name: each for name, each in tree.items() if name != "text"}
