"""A provider's usage file: read with clear errors, and compared by day and model."""

from datetime import date

import pytest

from flujo_client.cli.spend import compare, plain_name, read_bill
from flujo_client.contract.spend import Counted, DayOfModel
from flujo_client.errors import ClientError

DAY = date(2026, 11, 28)
BILL = """\ufeffDay,Model,requests,input_tokens,output_tokens,cost_usd,project
2026-11-28,gpt-5-2025-08-07,3,300,30,0.3,shop
2026-11-28T00:00:00Z,gpt-5,1,100,10,$0.1,shop
2026-11-29,gpt-5,1,,10,,shop
"""


@pytest.fixture
def bill(tmp_path):
    def write(text):
        path = tmp_path / "bill.csv"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_days_and_models_are_added_up_and_compared(bill):
    ours = [
        DayOfModel(DAY, "openai:gpt-5", Counted(5, 400, 40, 0.4)),
        DayOfModel(DAY, None, Counted(1, 7, 3, 0.01)),
    ]
    unnamed, first, second = compare(ours, read_bill(bill(BILL)))
    assert (first.day, first.model, first.theirs) == (DAY, "gpt-5", Counted(4, 400, 40, 0.4))
    assert first.difference == Counted(1, 0, 0, 0.0)
    assert (unnamed.model, unnamed.theirs, unnamed.difference.requests) == ("", Counted(0, 0, 0, 0), 1)
    assert (second.ours, second.theirs) == (Counted(0, 0, 0, 0.0), Counted(1, None, 10, None))
    assert second.difference == Counted(-1, None, -10, None)


@pytest.mark.parametrize(
    ("named", "plain"),
    [
        ("openai:gpt-5", "gpt-5"),
        ("gpt-4o-2024-08-06", "gpt-4o"),
        ("claude-sonnet-4-20250514", "claude-sonnet-4"),
        ("bedrock:us.anthropic.claude-v1:0", "us.anthropic.claude-v1:0"),
        ("us.anthropic.claude-v1:0", "us.anthropic.claude-v1:0"),
        (None, ""),
    ],
)
def test_models_are_compared_without_provider_and_version(named, plain):
    assert plain_name(named) == plain


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no column `day`; it has none"),
        ("day,requests\n", "has no column `model`; it has day, requests"),
        ("day,model\n", "has no column any of requests, input_tokens, output_tokens, cost_usd"),
        ("day,model,requests\n", "has no rows"),
        (
            "day,model,requests\n28/11/2026,gpt-5,1\n",
            "line 2: `day` must be a date such as 2026-11-29, got '28/11/2026'",
        ),
        ("day,model,requests\n2026-11-28,gpt-5,1.5\n", "line 2: `requests` must be a whole number, got '1.5'"),
        ("day,model,cost_usd\n2026-11-28,gpt-5,x\n", "line 2: `cost_usd` must be a number, got 'x'"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_by_line_and_column(bill, text, message):
    with pytest.raises(ClientError) as caught:
        read_bill(bill(text))
    assert message in caught.value.message
    assert "day, model, requests" in caught.value.suggestion
