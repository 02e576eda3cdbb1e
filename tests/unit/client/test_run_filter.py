"""What a filter of runs cannot mean is refused, with the name of the condition."""

from datetime import datetime, timedelta

import pytest

from flujo_client.contract.run_filter import RunFilter
from flujo_client.errors import ClientError


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ({"metadata": "x"}, "`metadata` must be a mapping, got a str"),
        ({"metadata": [("order", 1)]}, "`metadata` must be a mapping, got a list"),
        ({"since": "2h"}, "`since` must be a datetime or a timedelta, got a str"),
        ({"since": datetime(2026, 1, 1)}, "`since` has no time zone"),  # noqa: DTZ001 - this is refused
        ({"status": 5}, "`status` must be a status or a list of them, got a int"),
        ({"status": [5]}, "`status` must be one of .*, got '5'"),
        ({"status": "asleep"}, "`status` must be one of .*, got 'asleep'"),
    ],
)
def test_a_condition_that_cannot_be_met_is_named(conditions, message):
    with pytest.raises(ClientError, match=message):
        RunFilter(**conditions)


def test_conditions_become_parameters():
    given = RunFilter(status="failed", metadata={"order": 1}, since=timedelta(hours=2)).parameters()
    assert (given["status"], given["metadata"], given["within_s"]) == (["failed"], '{"order":1}', 7200.0)
