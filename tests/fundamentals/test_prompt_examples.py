"""What the documents show of prompts from templates does what they say."""

from examples.review import pipeline
from flujo_client import Settings
from flujo_client.config.models import Log
from flujo_worker.testing import LocalEngine

PROMPT = """Review this text for lawyers:

Hello.

## What was said before
- too short
- "# too loud\""""


def test_a_template_is_told_task_and_context():
    """M-317: in the user's message; the other agent's system prompt is rendered for its call."""
    with LocalEngine(Settings(log=Log(prompts="full"))) as engine:
        result = engine.run(pipeline, "Hello.", context={"audience": "lawyers", "remarks": ["too short", "# too loud"]})
        story = engine.story(result.run_id)
    assert result.raise_for_status().step_history[0].output == PROMPT
    systems = [event.data["system_prompt_preview"] for event in story if event.name == "agent.system"]
    assert systems == ["You review texts.", "You write for lawyers. Be kind."]
