"""Filters that a project has not enabled are findings with their place (§2.7, `enabled_template_filters`)."""

from typing import get_args

import pytest

from flujo_client import ConfigManager, Pipeline
from flujo_client.blueprint.validate import validate_text
from flujo_client.config.models import TemplateFilter
from flujo_client.errors import BlueprintError, SettingsError
from flujo_client.expressions.filters import FILTERS

BLUEPRINT = """
name: texts
steps:
  - {name: a, uses: 'broken_parts:echo', input: '{{ previous_step | upper }}'}
  - name: b
    kind: conditional
    condition_expression: previous_step | length > 3
    branches: {true: [{name: c, uses: 'broken_parts:echo', input: '{{#if previous_step | tojson}}x{{/if}}'}]}
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with a flujo.toml that enables only `upper`."""
    (tmp_path / "flujo.toml").write_text('[validation]\nenabled_template_filters = ["upper"]\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_all_are_enabled_by_default():
    """§2.7: the setting names what the language has."""
    assert get_args(TemplateFilter) == tuple(FILTERS)
    assert validate_text(BLUEPRINT, allowed=["*"], target="texts").errors == ()


def test_another_filter_is_found_with_its_place(project):
    """§2.7: in templates, in their blocks, and in expressions."""
    report = validate_text(BLUEPRINT, allowed=["*"], target="texts")
    assert [(each.rule, each.key, each.line) for each in report.errors] == [
        ("V-T8", "steps[1].condition_expression", 7),
        ("V-T8", "steps[1].branches.true[0].input", 8),
    ]
    assert "'length'" in report.errors[0].message
    assert "enabled: upper" in str(report.errors[0])


def test_it_refuses_the_blueprint(project):
    """§2.7: what is not enabled is not loaded either."""
    with pytest.raises(BlueprintError, match="V-T8"):
        Pipeline.from_yaml_text(BLUEPRINT, allowed=["*"])


def test_a_filter_that_does_not_exist_is_found_with_its_place():
    """§2.7: whatever is enabled."""
    report = validate_text(BLUEPRINT.replace("upper", "uper"), allowed=["*"], target="texts")
    assert [(each.key, each.line) for each in report.errors] == [("steps[0].input", 4)]
    assert "unknown filter" in report.errors[0].message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[validation]\nenabled_template_filters = ["uper"]\n', "'upper'"),
        ('[settings]\nenabled_template_filters = ["upper"]\n', "validation.enabled_template_filters"),
    ],
)
def test_what_cannot_be_enabled_is_refused(project, text, said):
    """§2.7: an unknown filter, and the place of the original."""
    (project / "flujo.toml").write_text(text)
    with pytest.raises(SettingsError) as refused:
        ConfigManager().settings()
    assert said in f"{refused.value} {refused.value.suggestion}"
