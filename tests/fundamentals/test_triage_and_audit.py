"""The blueprints that are shown do what they say: in the local engine, beside their Python twin, and in real processes."""

import json
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner
from flujo_demo.license_audit import pipeline as twin

from flujo_client import Pipeline
from flujo_client.cli.main import cli
from tests.support.fleet import STEADY, Site, wait_until

ROOT = Path(__file__).parents[2]
TRIAGE, AUDIT = ROOT / "examples" / "support_triage.yaml", ROOT / "examples" / "flujo_demo" / "license_audit.yaml"
BLENDER = "01-blender.txt: Ticket of urgency 5: "


@pytest.fixture
def letters(tmp_path):
    """A folder of a user's: one refund too small to be asked about, one fault, one without words."""
    for name, text in {
        "a.txt": "I was charged twice, please send the $20.00 back.",
        "b.txt": "The app is broken since noon.",
        "c.txt": "\x00\x01",
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_letters_are_sorted_and_large_refunds_wait_for_a_person(engine):
    """SYS-30: conditional, approval, budget and AROS in one blueprint."""
    run = engine.enqueue(Pipeline.from_yaml_file(TRIAGE), str(ROOT / "examples" / "inbox"))
    engine.drain()
    [asked] = engine.approvals(run)
    assert asked.message.startswith(
        "134.4 are asked back in all. 02-twice.txt: Refund 84.9 for: my card was charged twice"
    )
    told = engine.answer(run, {"approved": True, "note": "both are right"}).output
    assert {name: len(notes) for name, notes in told["desk"].items()} == {"fault": 1, "refund": 2, "question": 1}
    assert told["desk"]["fault"][0].startswith(BLENDER)
    assert (told["refunds"], told["ruling"]["note"]) == (134.4, "both are right")


def test_untidy_answers_are_repaired_and_one_is_asked_for_again(engine):
    """SYS-23: the processing block of the blueprint's agent acts."""
    run = engine.enqueue(Pipeline.from_yaml_file(TRIAGE), str(ROOT / "examples" / "inbox"))
    engine.drain()
    told = Counter(each.name for each in engine.story(run))
    assert (told["agent.response"], told["output.coercion.fail"]) == (4, 1)
    assert told["output.coercion.success"] >= 3


def test_no_one_is_asked_about_a_small_refund(engine, letters):
    result = engine.run(Pipeline.from_yaml_file(TRIAGE), str(letters))
    assert result.output["ruling"]["note"] == "small enough to pay at once"
    assert result.output["desk"]["fault"] == ["b.txt: Ticket of urgency 2: The app is broken since noon."]


def test_a_budget_holds_over_all_letters(engine, letters):
    """SYS-18: what would pass the map's limit is refused."""
    text = TRIAGE.read_text().replace("total_tokens_limit: 200000", "total_tokens_limit: 1")
    text = text.replace("from_file: support_triage.md", "text: Sort it.").replace("variables:", "variables: ")
    result = engine.run(Pipeline.from_yaml_text(text), str(letters))
    assert (result.run_status, result.error.type_name) == ("failed", "UsageLimitExceededError")


def test_an_empty_folder_is_told(engine, tmp_path):
    result = engine.run(Pipeline.from_yaml_file(TRIAGE), str(tmp_path))
    assert f"there is no .txt file in {tmp_path}" in result.error.message


def test_the_audit_in_yaml_finds_what_its_python_twin_finds(engine):
    """SYS-30: the same pipeline, written twice."""
    names = ["celery", "psycopg", "orjson", "no-such-distribution"]
    outputs = [engine.run(each, names).output for each in (Pipeline.from_yaml_file(AUDIT), twin)]
    assert outputs[0].groups == outputs[1].groups
    assert {name: len(found) for name, found in outputs[0].groups.items()} == {
        "permissive": 1,
        "copyleft": 2,
        "failed": 1,
    }


@pytest.mark.acceptance
def test_flujo_run_sorts_letters_in_real_processes(services, tmp_path, letters):
    """SYS-30: `flujo run` with the file to the end; then a person at `flujo approvals`, and the trace."""

    def flujo(*arguments):
        told = CliRunner().invoke(cli, arguments, env=site.settings.as_environment())
        assert told.exit_code == 0, told.output
        return told.stdout

    with Site(services, tmp_path, worker=STEADY) as site:
        site.workers(code=ROOT)
        told = json.loads(flujo("run", str(TRIAGE), "--input", str(letters), "--json"))
        assert told["output"]["ruling"]["note"] == "small enough to pay at once"
        (letters / "d.txt").write_text("I want my money back at once, all of the $300.")
        run = site.client.enqueue(str(TRIAGE), str(letters))
        wait_until(lambda: run.status() == "paused", what=site.log)
        flujo(
            "approvals",
            "answer",
            run.id,
            "--input-json",
            json.dumps({"approved": False, "note": "ask for the receipt"}),
        )
        assert run.result(timeout=60).output["ruling"] == {"approved": False, "note": "ask for the receipt"}
        trace = flujo("lens", "trace", run.id, "--full")
    assert "each letter#4" in trace
