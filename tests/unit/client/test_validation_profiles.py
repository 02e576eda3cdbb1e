"""`flujo validate --profile` and `--rules`: which rules count, and how much (requirements §2.7, §2.8)."""

import json

import pytest
from click.testing import CliRunner

from flujo_client.cli.main import cli

WARNED = "agents: {spare: {model: test}}\nsteps: [{name: a, uses: 'broken_parts:echo'}]"
BROKEN = "steps:\n  - {name: a, uses: 'broken_parts:echo', input: '{{ steps.b.output }}'}"
SETTINGS = """
allowed_imports = ["broken_parts"]

[validation.profiles.quiet]
V-A4 = "off"

[validation.profiles.ci]
"V-*" = "error"
V-T4 = "off"

[validation.profiles.mixed]
"V-A*" = "off"
V-A4 = "error"
"""


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flujo.toml").write_text(SETTINGS)
    (tmp_path / "warned.yaml").write_text(WARNED)
    (tmp_path / "broken.yaml").write_text(BROKEN)
    (tmp_path / "quiet.toml").write_text('# spares are ours\nV-A4 = "off"\n')
    return tmp_path


def flujo(*arguments):
    return CliRunner().invoke(cli, ["validate", *arguments])


def findings_of(*arguments):
    return [(each["rule"], each["severity"]) for each in json.loads(flujo(*arguments, "--json").stdout)["findings"]]


@pytest.mark.parametrize(
    ("options", "findings", "code"),
    [
        ([], [("V-A4", "warning")], 0),
        (["--profile", "quiet"], [], 0),
        (["--profile", "ci"], [("V-A4", "error")], 4),
        (["--profile", "mixed"], [("V-A4", "error")], 4),
        (["--rules", "quiet.toml"], [], 0),
        (["--rules", "quiet"], [], 0),
        (["--profile", "ci", "--rules", "quiet.toml"], [], 0),
        (["--profile", "quiet", "--rules", "ci"], [("V-A4", "error")], 4),
    ],
)
def test_a_profile_says_what_becomes_of_a_warning(options, findings, code):
    """An exact name goes before a pattern, --rules before --profile."""
    assert findings_of("warned.yaml", *options) == findings
    assert flujo("warned.yaml", *options).exit_code == code


def test_what_refuses_a_pipeline_cannot_be_lowered():
    """What `flujo validate` lets pass, `flujo enqueue` takes; and whoever wrote `off` is told why it is not."""
    ended = flujo("broken.yaml", "--profile", "ci")
    assert ended.exit_code == 4
    assert "V-T4: steps[0].input" in ended.stdout
    assert "broken.yaml: V-T4: enqueueing refuses such a pipeline" in ended.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--profile", "quite"], "did you mean 'quiet'?"),
        (["--profile", "quiet.toml"], "there is no profile 'quiet.toml'"),
        (["--rules", "nowhere"], "there is no profile 'nowhere'"),
        (["--rules", "nowhere.toml"], "nowhere.toml: cannot be read (No such file"),
        (["--rules", "wrong_rule.toml"], "did you mean 'V-A4'?"),
        (["--rules", "wrong_level.toml"], "'wran' is not a weight"),
        (["--rules", "table.toml"], "is not a weight"),
        (["--rules", "no.toml"], "no.toml:1:"),
    ],
)
def test_a_profile_that_cannot_be_is_refused(project, options, said):
    (project / "wrong_rule.toml").write_text('V-A44 = "off"')
    (project / "wrong_level.toml").write_text('V-A4 = "wran"')
    (project / "table.toml").write_text('[rules]\nV-A4 = "off"')
    (project / "no.toml").write_text("V-A4 =")
    ended = flujo("warned.yaml", *options)
    assert ended.exit_code == 2
    assert said in ended.stderr


def test_a_weight_of_the_settings_is_checked_where_it_stands(project):
    (project / "flujo.toml").write_text(SETTINGS.replace('V-T4 = "off"', 'V-T4 = "of"'))
    ended = flujo("warned.yaml")
    assert ended.exit_code == 2
    assert "flujo.toml:9: validation.profiles.ci.V-T4" in ended.stderr
    assert "did you mean 'off'?" in ended.stderr


def test_a_profile_that_no_one_asked_for_is_checked_too(project):
    (project / "flujo.toml").write_text(SETTINGS.replace("V-T4", "V-T44"))
    ended = flujo("warned.yaml")
    assert ended.exit_code == 2
    assert "profile 'ci': 'V-T44' is not a rule" in ended.stderr
