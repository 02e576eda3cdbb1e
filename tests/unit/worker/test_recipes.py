"""Ready-made agents: their models, prompts and outputs (requirements §2.5, §2.7)."""

import pytest

from flujo_client import Checklist, ConfigManager
from flujo_client.errors import SettingsError
from flujo_worker import agents

KINDS = {
    "review": Checklist,
    "solution": str,
    "validator": Checklist,
    "reflection": str,
    "self_improvement": agents.ImprovementReport,
    "repair": str,
}


def make(kind, *given, **options):
    return getattr(agents, f"make_{kind}_agent")(*given, **options)


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    """A project whose settings say nothing."""
    (tmp_path / "flujo.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", KINDS)
def test_each_has_a_model_a_prompt_and_an_output(kind):
    agent = make(kind)
    assert (agent.model, agent.output_type, agent.name) == ("openai:gpt-4o", KINDS[kind], kind)
    assert len(agent.system_prompt) > 100


@pytest.mark.parametrize("kind", KINDS)
def test_the_settings_name_its_model(kind, project, monkeypatch):
    (project / "flujo.toml").write_text(f'[agents]\ndefault_{kind}_model = "anthropic:some"\n')
    others = [make(each).model for each in KINDS if each != kind]
    assert (make(kind).model, set(others)) == ("anthropic:some", {"openai:gpt-4o"})
    monkeypatch.setenv(f"FLUJO_AGENTS_DEFAULT_{kind.upper()}_MODEL", "openai:other")
    assert make(kind).model == "openai:other"


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_given_goes_before(kind):
    agent = make(kind, "test", system_prompt="Mine.", max_retries=5, name="me")
    assert (agent.model, agent.system_prompt, agent.name) == ("test", "Mine.", "me")
    assert agent.__flujo_defaults__ == {"max_retries": 5}


def test_the_originals_section_is_refused_with_the_keys_that_serve():
    """§2.7: `[settings]`."""
    (path := ConfigManager()._file()).write_text('[settings]\ndefault_review_model = "x"\n')
    with pytest.raises(SettingsError, match=r"agents\.default_review_model"):
        ConfigManager(path, environ={}).settings()


def test_an_empty_model_is_refused(project):
    (project / "flujo.toml").write_text('[agents]\ndefault_review_model = ""\n')
    with pytest.raises(SettingsError, match="default_review_model"):
        make("review")
