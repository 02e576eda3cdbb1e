"""What the documents show of blueprints does what they say."""

from __future__ import annotations

from pathlib import Path

from examples import letters
from flujo_client import Pipeline
from flujo_worker.testing import LocalEngine

PAGE = Path(__file__).parents[2] / "docs/how-to/write-a-pipeline-in-yaml.md"


def test_the_page_shows_the_file():
    assert f"```yaml\n# examples/blueprints/letters.yaml\n{letters.FILE.read_text()}```" in PAGE.read_text()


def test_the_letters_are_written_and_kept():
    pipeline = Pipeline.from_yaml_file(letters.FILE)
    with LocalEngine() as engine:
        result = engine.run(pipeline, "Ada", context={"subject": "bees"})
    assert [step.name for step in result.step_history] == ["draft", "checks", "sort"]
    assert result.output == result.final_pipeline_context.letter != ""
    assert pipeline.steps[0].agent.system_prompt == "Write friendly letters of at most a hundred words.\n"


def test_the_letters_are_written_as_yaml():
    pipeline = Pipeline.from_yaml_file(letters.FILE)
    assert Pipeline.from_yaml_text(pipeline.to_yaml()).to_yaml() == pipeline.to_yaml()


def test_faults_are_told():
    text = "steps:\n  - {name: a, uses: 'examples.letters:keep', confg: {}}"
    assert letters.faults(text) == [("steps[0].confg", 2, "config")]
    assert (
        letters.faults(
            letters.FILE.read_text().replace("{from_file: prompts/writer.md, variables: {tone: friendly}}", "hi")
        )
        == []
    )
