"""The how-to's release note is written as its page says; the calls themselves are compared in tests/integration."""

from __future__ import annotations

import json

import pytest
from openai_server import OpenAIServer, Said

from examples import release_note
from flujo_client import Candidate, Checklist, ChecklistItem
from flujo_worker.testing import LocalEngine


def said(**item):
    return Said(arguments=json.dumps({"items": [{"description": "it is short", **item}]}))


def test_its_pipeline_asks_the_agents_it_names(monkeypatch):
    with OpenAIServer([said(), "Long.", said(passed=False), "Cut.", "Short.", said(passed=True)]) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        with LocalEngine() as engine:
            output = engine.run(release_note.pipeline, "A release note about: bees").output
    assert (output.solution, output.score) == ("Short.", 1.0)
    assert [body["model"] for body in server.bodies].count("gpt-4o-mini") == 1


@pytest.mark.parametrize(("passed", "text"), [(True, "Short."), (False, "Short.\n\nStill to do: it is short")])
def test_what_is_missing_is_told(passed, text):
    items = [ChecklistItem(description="it is short", passed=passed)]
    found = Candidate(solution="Short.", score=float(passed), checklist=Checklist(items=items))
    assert release_note.told(found) == text
