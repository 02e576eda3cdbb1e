"""What is hidden in lines and events, and what is not (SYS-21, §2.9 of the trace contract)."""

from __future__ import annotations

import pytest

from flujo_client.redact import hide_fields, redact, redact_tree

KEYS = {
    "OpenAI": "sk-" + "a1B2c3D4" * 6,
    "OpenAI, project": "sk-proj-" + "a1B2-c3_4" * 12,
    "Anthropic": "sk-ant-api03-" + "a1B2-c3_4" * 10,
    "OpenRouter": "sk-or-v1-" + "0123abcd" * 8,
    "Google": "AIza" + "a1B2c3D4_-" * 3 + "abcde",
    "Google OAuth": "ya29." + "a1B2c3D4_-" * 5,
    "Groq": "gsk_" + "a1B2c3D4" * 6,
    "xAI": "xai-" + "a1B2c3D4" * 10,
    "Perplexity": "pplx-" + "a1B2c3D4" * 6,
    "Hugging Face": "hf_" + "a1B2c3D4" * 4,
    "Replicate": "r8_" + "a1B2c3D4" * 4,
    "GitHub": "ghp_" + "a1B2c3D4" * 4,
    "GitHub, app": "ghs_" + "a1B2c3D4" * 4,
    "GitHub, fine-grained": "github_pat_" + "a1B2c3D4" * 8,
    "GitLab": "glpat-" + "a1B2c3D4-_" * 2,
    "Slack": "xoxb-" + "123456789012-" * 2 + "a1B2c3D4",
    "npm": "npm_" + "a1B2c3D4" * 4,
    "PyPI": "pypi-" + "AgEIcHlwaS5vcmc" * 3,
    "SendGrid": "SG." + "a1B2c3D4" * 3 + "." + "a1B2c3D4" * 5,
    "Stripe": "sk_live_" + "a1B2c3D4" * 3,
    "Stripe webhook": "whsec_" + "a1B2c3D4" * 4,
    "DigitalOcean": "dop_v1_" + "0123abcd" * 8,
    "AWS": "AKIA" + "ABCDEFGH12345678",
    "JWT": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N",
    "PEM": "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7\n-----END RSA PRIVATE KEY-----",
    "bearer": "Bearer a1B2c3D4e5F6",
}


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS.keys())
@pytest.mark.parametrize("around", ["{}", "call failed: {}", '{{"h": "{}"}}', "({}), again"])
def test_the_shape_of_a_providers_key_is_hidden(key, around):
    """Made-up keys in real shapes. Nothing of the secret part is left, and doing it twice changes nothing."""
    hidden = redact(around.format(key))
    assert "***" in hidden
    assert not any(part in hidden for part in ("a1B2", "0123abcd", "ABCDEFGH", "AgEIc", "MIIE", "eyJzdWI", "dozjg"))
    assert redact(hidden) == hidden


@pytest.mark.parametrize(
    "text",
    [
        "sk-learn and hf_model are names",
        "task-123 is done",
        "the AKIA prefix",
        "basic functionality works",
        "xai-small answered",
        "eyJ is how they begin",
        "npm_config_cache=/tmp",
        "tokens: 120",
        "a key: value store",
        "risk-averse",
    ],
)
def test_what_only_resembles_a_key_stays(text):
    assert redact(text) == text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("db_password", "x1"),
        ("OPENAI_API_KEY", "x1"),
        ("client_secret", "x1"),
        ("signing-key", "x1"),
        ("refresh_token", "x1"),
        ("Authorization", "x1"),
        ("cookie", "x1"),
    ],
)
def test_a_text_under_a_name_that_tells_a_secret_is_hidden(name, value):
    assert redact_tree({name: value}) == {name: "***"}
    assert value not in redact(f"{name}={value}") or name == "Authorization"


def test_a_field_that_a_project_names_is_hidden_whatever_it_holds():
    """`[log] redact`: in any case, numbers and trees too; not what only contains the name."""
    tree = {"SSN": 123, "card": {"number": "4111"}, "deep": [{"ssn": "x"}], "cardinal": 1}
    hide_fields(["ssn", "Card"])
    try:
        assert redact_tree(tree) == {"SSN": "***", "card": "***", "deep": [{"ssn": "***"}], "cardinal": 1}
    finally:
        hide_fields([])
    assert redact_tree(tree) == tree


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"iban": "DE89 \\"x\\", 1", "city": "Rome"}', '{"iban": ***, "city": "Rome"}'),
        ("- **IBAN**: DE89\n- **city**: Rome", "- **IBAN**: ***\n- **city**: Rome"),
        ("iban = DE89, city = Rome", "iban = ***, city = Rome"),
        ("no ibans: here", "no ibans: here"),
    ],
)
def test_hidden_fields_are_hidden_in_texts_too(text, shown):
    """A prompt shows a context as JSON or as a list: the fields of `log.redact` stand in it by their names."""
    hide_fields(["iban"])
    try:
        assert redact(text) == shown
    finally:
        hide_fields([])
    assert redact(text) == text


def test_a_long_text_without_a_secret_costs_little():
    """Linear: hostile text of a megabyte is no way to stop a worker."""
    for text in ("-----BEGIN RSA PRIVATE KEY-----" * 5_000, "eyJ" * 50_000, "xoxb-" * 30_000, "api_key=" * 20_000):
        assert isinstance(redact(text), str)
