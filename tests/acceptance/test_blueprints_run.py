"""Blueprints in real processes: the client has the file, the workers have only the modules it names (SYS-30)."""

import pytest
from click.testing import CliRunner

from flujo_client import Pipeline
from flujo_client.cli.main import cli
from tests.support.fleet import PATIENCE_S, STEADY

pytestmark = [pytest.mark.acceptance, pytest.mark.site(worker=STEADY, workers=2)]

LETTER = """
imports: {check: parts/check.yaml}
agents:
  writer:
    model: test
    system_prompt: {from_file: prompt.md, variables: {tone: short}}
    output_schema: {type: object, properties: {text: {type: string}}, required: [text], additionalProperties: false}
steps:
  - {name: write, uses: agents.writer, input: "Write to {{ previous_step }}", sink_to: letter}
  - kind: parallel
    name: both
    branches:
      a: [{name: one, uses: "blueprint_pipelines:shorten"}, {name: two, uses: "blueprint_pipelines:mark"}]
      b: {name: check, uses: imports.check, config: {outputs: []}}
  - kind: loop
    name: again
    loop:
      body: [{name: more, uses: "blueprint_pipelines:mark"}]
      exit_expression: "'marked marked' in previous_step"
      initial_input_mapper: blueprint_pipelines:of_a
"""
CHECK = "steps: [{name: looked, uses: 'blueprint_pipelines:mark', input: 'looked'}]"
GATED = """
steps:
  - {name: gate, uses: "blueprint_pipelines:wait_at_gate"}
  - {name: after, uses: "blueprint_pipelines:mark", input: "before the edit"}
"""


@pytest.fixture
def flujo(site):
    def flujo(*arguments):
        return CliRunner().invoke(cli, arguments, env=site.settings.as_environment())

    return flujo


def written(folder, **texts):
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder


def test_flujo_run_takes_a_file(flujo, tmp_path):
    """§2.6: a prompt of a file, an import, an agent of the document, containers, templates."""
    (tmp_path / "parts").mkdir()
    written(tmp_path / "parts", check=CHECK)
    (tmp_path / "prompt.md").write_text("Write {{ tone }} letters.")
    file = written(tmp_path, letter=LETTER) / "letter.yaml"
    told = flujo("run", str(file), "--input", "bob", "--no-steps", "--timeout", str(PATIENCE_S))
    assert (told.exit_code, told.stdout.strip()) == (0, "a marked marked"), told.output


def test_an_edit_changes_no_run_in_flight(site, tmp_path):
    """§2.6: the text travels with the run; its file may change, and go."""
    file = written(tmp_path, gated=GATED) / "gated.yaml"
    run = site.client.enqueue(str(file), "in")
    site.wait_for_execution(run.id, "gate")
    file.write_text(GATED.replace("before", "after"))
    after = site.client.enqueue(str(file), "in")
    file.unlink()
    for each in (run, after):
        site.open_gate(each.id)
    assert run.result(timeout=PATIENCE_S).output == "before the edit marked"
    assert after.result(timeout=PATIENCE_S).output == "after the edit marked"
    assert run.record().reference != after.record().reference


def test_a_worker_that_never_saw_it_retries_it(site):
    """M-014: a fork needs the plan, and the text is in it."""
    run = site.client.enqueue(Pipeline.from_yaml_text(GATED), "in")
    site.open_gate(run.id)
    run.result(timeout=PATIENCE_S)
    site.dismiss()
    site.workers(1)
    forked = run.retry(from_step="after")
    assert forked.result(timeout=PATIENCE_S).output == "before the edit marked"
    assert forked.record().reference == run.record().reference
