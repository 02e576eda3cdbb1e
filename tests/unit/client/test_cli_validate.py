"""`flujo validate`: what it prints, and with which code it ends (§2.8)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from flujo_client import Pipeline, Step
from flujo_client.blueprint.rules.table import RULES
from flujo_client.cli.main import cli
from flujo_client.errors import PipelineError
from flujo_client.pipeline.nested import ImportStep
from flujo_worker import make_agent_async

SOUND = "steps: [{name: a, uses: 'broken_parts:echo'}]"
WARNED = "agents: {spare: {model: test}}\n" + SOUND
BROKEN = "name: x\nsteps:\n  - {name: a, uses: 'broken_parts:echo', sink: letter}\n  - {name: b}\n"
SENDS = Pipeline([Step("a", agent=print, input="{{ steps.b.output }}")], name="sends")


@pytest.fixture
def put(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLUJO_ALLOWED_IMPORTS", "broken_parts,test_cli_validate,builtins")

    def put(text, name="letters.yaml"):
        (tmp_path / name).write_text(text)
        return name

    return put


def flujo(*arguments):
    return CliRunner().invoke(cli, ["validate", *arguments])


class Own:
    """An agent of a user's own, whose `model` may mean anything."""

    model = "claude"

    async def run(self, data):
        return data


CLAUDE, NAMELESS = make_agent_async("anthropic:claude-sonnet-4-5"), make_agent_async("gpt-4o")
ASKS = Pipeline([Step("plan", agent=CLAUDE), Step("own", agent=Own())], name="asks")
NAMES_NO_PROVIDER = Pipeline([Step("plan", agent=NAMELESS)])


def test_a_model_made_in_python_needs_a_provider(put):
    found = flujo("test_cli_validate:NAMES_NO_PROVIDER")
    assert found.exit_code == 4
    assert "V-A6: plan: model 'gpt-4o' does not name a provider" in found.stdout
    assert "did you mean 'openai:gpt-4o'?" in found.stdout


@pytest.mark.parametrize("target", ["test_cli_validate:ASKS", "letters.yaml"])
def test_the_package_of_a_model_made_in_python_is_missed(put, monkeypatch, target):
    """A warning: workers may have what is missing here. Where no agent could run at all, nothing is known about workers."""
    put("steps: [{name: plan, uses: 'test_cli_validate:CLAUDE'}]")
    monkeypatch.setitem(sys.modules, "anthropic", None)
    found = flujo(target)
    assert found.exit_code == 0
    assert found.stdout == (
        f"{target}: V-A9 (warning): plan: 'anthropic:claude-sonnet-4-5' needs the package 'anthropic', which is not installed here "
        "(where workers run: pip install 'pydantic-ai-slim[anthropic]')\n"
    )
    monkeypatch.setitem(sys.modules, "pydantic_ai", None)
    assert flujo(target).stdout == ""


def test_every_finding_has_its_line(put):
    told = flujo(put(BROKEN))
    assert told.exit_code == 4
    assert told.stdout.splitlines() == [
        "letters.yaml:3:42: Y-KEY: steps[0].sink: a step has no such key; did you mean 'sink_to'?",
        "letters.yaml:4:5: V-A1: steps[1]: a step needs one of uses, agent",
    ]
    assert "letters.yaml: 2 errors" in told.stderr


@pytest.mark.parametrize(
    ("text", "options", "code"),
    [
        (SOUND, [], 0),
        (WARNED, [], 0),
        (WARNED, ["--fail-on-warn"], 4),
        (BROKEN, [], 4),
        (BROKEN, ["--no-strict"], 0),
        (SOUND, ["--fail-on-warn"], 0),
    ],
)
def test_its_exit_code_says_what_was_found(put, text, options, code):
    assert flujo(put(text), *options).exit_code == code


@pytest.mark.parametrize("options", [["--json"], ["--format", "json"]])
def test_findings_are_data_too(put, options):
    told = json.loads(flujo(put(BROKEN), *options).stdout)
    assert (told["target"], told["valid"]) == ("letters.yaml", False)
    assert told["findings"][0] == {
        "rule": "Y-KEY",
        "severity": "error",
        "file": "letters.yaml",
        "line": 3,
        "column": 42,
        "key": "steps[0].sink",
        "message": "a step has no such key",
        "allowed": None,
        "nearest": "sink_to",
    }


def test_several_are_told_one_after_the_other(put):
    told = flujo(put(SOUND), put(BROKEN, "other.yaml"), "--json")
    assert [each["valid"] for each in json.loads(told.stdout)] == [True, False]
    assert told.exit_code == 4


def test_imports_may_be_left_out(put):
    put("nmae: x\n" + SOUND, "part.yaml")
    main = put("imports: {part: part.yaml}\nsteps: [{name: a, uses: imports.part}]")
    assert "part.yaml:1:1: Y-KEY" in flujo(main).stdout
    assert flujo(main, "--no-imports").exit_code == 0


@pytest.mark.parametrize(
    ("target", "rule", "says"),
    [
        ("nowhere.yaml", "Y-FILE", "'nowhere.yaml' cannot be read: No such file or directory"),
        ("broken_parts:nowhere", "Y-REFERENCE", "module 'broken_parts' has no 'nowhere'"),
        ("broken_prats:nowhere", "Y-REFERENCE", "'broken_prats:nowhere' is outside the allowed imports"),
        ("letters.yml.txt", "Y-REFERENCE", "'letters.yml.txt' is not a reference to a pipeline"),
    ],
)
def test_a_target_that_is_not_there_is_a_finding_and_the_others_are_looked_at(put, target, rule, says):
    told = flujo(target, put(BROKEN), "--json")
    missing, broken = json.loads(told.stdout)
    (finding,) = missing["findings"]
    assert (missing["target"], missing["valid"], finding["rule"], finding["file"]) == (target, False, rule, target)
    assert says in finding["message"]
    assert len(broken["findings"]) == 2
    assert f"{target}: {rule}: " in flujo(target).stdout


@pytest.mark.parametrize("options", [[], ["--no-strict"]])
def test_a_target_that_is_not_there_decides_the_exit_code(put, options):
    """3, which is told before 4: what was not looked at may have anything wrong with it."""
    assert flujo("nowhere.yaml", put(BROKEN), *options).exit_code == 3
    assert flujo("broken_parts:nowhere", *options).exit_code == 3
    assert flujo("elsewhere:pipeline", *options).exit_code == 4


def test_without_a_target_it_says_what_it_wants(put):
    assert flujo().exit_code == 2


def test_rules_are_listed(put):
    listed = [line.split()[0] for line in flujo("--list-rules").stdout.splitlines()]
    assert listed == list(RULES)
    assert [each["rule"] for each in json.loads(flujo("--list-rules", "--json").stdout)] == listed


def test_a_pipeline_of_a_module_is_looked_at(put):
    told = flujo("test_cli_validate:SENDS")
    assert "V-T4: steps[0].input: `steps.b`: no step has this name" in told.stdout
    assert told.exit_code == 4


def test_a_pipeline_is_asked_by_itself():
    """§2.3: `validate_graph`."""
    report = SENDS.validate_graph(allowed=("*",))
    assert [each.rule for each in report.errors] == ["V-T4"]
    assert not report.is_valid
    with pytest.raises(PipelineError, match="V-T4"):
        SENDS.validate_graph(raise_on_error=True, allowed=("*",))


def test_a_pipeline_that_cannot_be_enqueued_says_why():
    (finding,) = Pipeline([Step("a")]).validate_graph(allowed=("*",)).errors
    assert (finding.rule, finding.key) == ("V-A1", "a")


def test_nested_pipelines_are_looked_at_when_asked():
    pipeline = Pipeline([ImportStep("n", pipeline=Pipeline([Step("a")]))])
    assert pipeline.validate_graph(allowed=("*",)).is_valid
    assert [each.key for each in pipeline.validate_graph(include_imports=True, allowed=("*",)).errors] == ["n/body/a"]


def test_a_pipeline_of_a_blueprint_is_asked_by_its_text():
    report = Pipeline.from_yaml_text(WARNED, allowed=("*",)).validate_graph(allowed=("*",))
    assert [each.rule for each in report.warnings] == ["V-A4"]
    assert report.is_valid


ALONE = """
import sys
for name in ("flujo_worker", "jsonschema_rs", "pydantic_ai", "structlog", "jinja2", "json_repair"):
    sys.modules[name] = None
from flujo_client.cli.main import main
sys.argv = ["flujo", "validate", "letters.yaml"]
main()
"""


def test_it_needs_no_worker_and_no_service(put):
    """None of the worker's packages can be imported, and the services' addresses lead nowhere."""
    put(SOUND)
    nowhere = {"FLUJO_DATABASE_URL": "postgresql://127.0.0.1:9/x", "FLUJO_BROKER_URL": "redis://127.0.0.1:9"}
    here = [str(Path(__file__).parent), *sys.path]
    environment = {**nowhere, "PYTHONPATH": ":".join(here), "FLUJO_ALLOWED_IMPORTS": "broken_parts"}
    ended = subprocess.run(
        [sys.executable, "-c", ALONE], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
