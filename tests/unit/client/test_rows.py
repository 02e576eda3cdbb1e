"""Rows of Postgres are read into records; a query that lacks a column is a fault of ours, which must not be hidden."""

from datetime import UTC, datetime

import pytest

from flujo_client.contract.rows import approval_record

ASKED = datetime(2026, 1, 1, tzinfo=UTC)
ROW = dict.fromkeys(("expires_at", "answered_by", "note", "answered_at")) | {
    "run_id": "run_1",
    "pipeline": "p",
    "address": "",
    "step": "ask",
    "key": "run_1::ask:1",
    "asked_at": ASKED,
    "status": "paused",
    "run_status": "paused",
    "is_answered": False,
    "is_over": False,
    "question": {"message": "go?"},
}


def test_a_question_is_read():
    assert (approval_record(ROW).message, approval_record(ROW).state) == ("go?", "open")


@pytest.mark.parametrize("name", ["expires_at", "answered_by", "note", "answered_at"])
def test_a_column_that_a_query_of_questions_lacks_is_an_error(name):
    with pytest.raises(KeyError, match=name):
        approval_record({key: value for key, value in ROW.items() if key != name})
