"""Every edit in every state of a run: it goes on under the new code or is parked for a rule; none is stuck, none is silent (ADR 37)."""

from __future__ import annotations

import pytest
from changing_code import BEGIN, EDITS, END, PAGE, STATES, fate

GOES_ON, SAME = "goes on", "same plan"


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("state", STATES)
def test_a_run_ends_as_the_table_says(state, edit):
    came = fate(state, edit)
    assert came.word == written()[edit][state]
    assert came.status == "succeeded", "it is stuck"
    if came.word == GOES_ON:
        assert came.told, "it has changed its code in silence"
    elif came.word != SAME:
        assert came.reason, "nobody knows why it is parked"


def written() -> dict[str, dict[str, str]]:
    """The table of the page."""
    lines = PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0].strip().splitlines()
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return {edit: dict(zip(head[1:], cells, strict=True)) for edit, *cells in rows}


def test_the_table_has_every_edit_and_every_state():
    assert list(written()) == list(EDITS)
    assert len(EDITS) >= 20
    assert list(next(iter(written().values()))) == list(STATES)
    assert len(STATES) == 7
