"""The how-to's interview does what its page says, in YAML and in Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples import interview
from flujo_client import HistoryManagement, Pipeline, PipelineContext
from flujo_worker.testing import LocalEngine

ROOT = Path(__file__).parents[2]
FILE = ROOT / "examples/blueprints/interview.yaml"
PAGE = (ROOT / "docs/how-to/keep-a-conversation.md").read_text()


def test_the_page_shows_the_file():
    assert f"```yaml\n# examples/blueprints/interview.yaml\n{FILE.read_text()}```" in PAGE


def test_the_page_tells_the_defaults():
    for name, field in HistoryManagement.model_fields.items():
        assert f"| `{name}` | `{field.default}` |" in PAGE


@pytest.mark.parametrize("how", ["yaml", "python"])
def test_a_guest_is_interviewed(how, monkeypatch):
    """§2.6: the host's words are told to the guest once, and all of it to the host."""
    monkeypatch.setattr(interview.host, "model", "test")
    pipeline = Pipeline.from_yaml_file(FILE) if how == "yaml" else interview.pipeline
    with LocalEngine() as engine:
        run = engine.enqueue(pipeline, "Ada, who keeps bees")
        engine.drain()
        engine.answer(run, "I keep bees.")
        result = engine.answer(run, "goodbye")
        prompts = [each.data["prompt_preview"] for each in engine.story(run) if each.name == "agent.prompt"]

    context = result.final_pipeline_context
    assert isinstance(context, PipelineContext)
    assert (result.output, [turn.role for turn in context.conversation_history]) == (
        "4 turns",
        ["assistant", "user"] * 2,
    )
    assert prompts[0] == "Ada, who keeps bees"
    assert prompts[1].endswith('{"role": "user", "content": "I keep bees."}\n\nI keep bees.')
    assert prompts[1].startswith("The conversation so far, one JSON object for each turn, the oldest first:\n")
