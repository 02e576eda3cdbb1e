"""The demo's question to a person, how an answer is read at the terminal, and its report."""

from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner
from flujo_demo.license_audit import Audited, AuditFinding
from flujo_demo.license_facts import LicenseVerdict
from flujo_demo.report import approval, spent
from flujo_demo.ruling import BY_DEFAULT, MOST, Ruling, ask_about, read_ruling
from flujo_demo.terminal import answer_at_terminal, need_terminal

from flujo_client.contract.limits import UsageLimits
from flujo_client.errors import ConfigurationError
from tests.support.old_click import needs_end_of_input


@pytest.mark.parametrize(
    ("text", "ruling"),
    [
        ("yes", Ruling(approved=True)),
        (" Y ", Ruling(approved=True)),
        ("no", Ruling(approved=False)),
        ("no, ask legal", Ruling(approved=False, note="ask legal")),
        ("Yes: we pay for it", Ruling(approved=True, note="we pay for it")),
    ],
)
def test_an_answer_is_yes_or_no_and_why(text, ruling):
    assert read_ruling(text) == ruling


@pytest.mark.parametrize("text", ["", "maybe", "nope", "true", "1", "not sure"])
def test_what_is_neither_is_refused_with_the_reason(text):
    with pytest.raises(ValueError, match=f"answer yes or no, got '{text.partition(' ')[0]}'"):
        read_ruling(text)


def found(name, category="proprietary"):
    verdict = LicenseVerdict(spdx="LicenseRef-Own", category=category, confidence=0.9, evidence="Own\nterms")
    return AuditFinding(distribution=name, version="1.0", verdict=verdict)


def test_a_question_says_what_it_is_about():
    assert ask_about([found("odd")]).splitlines() == [
        "These licences are proprietary or unknown:",
        "  odd 1.0: LicenseRef-Own, proprietary, for it says 'Own terms'",
        "May they be used?",
    ]


def test_a_question_about_many_is_cut():
    lines = ask_about([found(f"d{number}") for number in range(MOST + 3)]).splitlines()
    assert (len(lines), lines[-2]) == (MOST + 3, "  … and 3 more")


@pytest.mark.parametrize(
    ("ruling", "state", "said"),
    [
        (None, None, "No licence is proprietary or unknown, so no approval was needed."),
        (Ruling(approved=True, note="we pay"), "answered", "Approved: we pay."),
        (Ruling(approved=False), "answered", "Not approved."),
        (
            BY_DEFAULT,
            "expired",
            "Not approved by default: no answer came in time. `flujo demo --ask` waits for your answer.",
        ),
    ],
)
def test_the_report_says_who_decided(ruling, state, said):
    assert approval(Audited(groups={}, ruling=ruling), [SimpleNamespace(state=state)] if state else []) == said


def test_the_report_says_what_of_the_budget_was_used():
    limits = UsageLimits(total_cost_usd_limit=2.0, total_tokens_limit=1_000_000)
    assert spent(31_207, 0.0125, limits) == "Spent $0.0125 of $2, and 31,207 of 1,000,000 tokens."


def asking(typed):
    """Ask at a terminal at which this is typed, by someone who then goes away; what was shown."""
    question = SimpleNamespace(message="May they be used?", step="approve", address="")

    @click.command()
    def ask():
        answer_at_terminal(SimpleNamespace(id="run_1"), question)

    return CliRunner().invoke(ask, input=typed, standalone_mode=False)


@needs_end_of_input
def test_whoever_goes_away_is_told_how_to_answer_later():
    """The question stays open: nothing is answered, and nothing cancelled."""
    left = asking("maybe\n")
    assert isinstance(left.exception, click.Abort)
    assert "answer yes or no, got 'maybe'" in left.stderr
    assert left.stderr.count("yes or no, and a reason if you like") == 2


def test_someone_has_to_be_there(monkeypatch):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: False))
    with pytest.raises(ConfigurationError) as refused:
        need_terminal()
    assert refused.value.error_code == "NO_TERMINAL"
