"""Every edit in every state of a run: it continues under the new code or is parked for a rule; none is stuck, none is silent (ADR 37)."""

from __future__ import annotations

from functools import cache, partial

import pytest
from changing_code import BEGIN, EDITS, END, PAGE, STATES, deploy, fate, see_through, standing

from flujo_client.pipeline.compile import compile_plan
from flujo_worker.changed_code.code_changes import CodeChanges
from tests.support.breadth import large

QUICK = ("between steps", "in a fan-out")
CONTINUES, SAME = "continues", "same plan"


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("state", [state if state in QUICK else large(state) for state in STATES])
def test_a_run_ends_as_the_table_says(state, edit):
    came = fate(state, edit)
    assert came.word == written()[edit][state]
    assert came.status == "succeeded", "it is stuck"
    if came.word == CONTINUES:
        assert came.told, "it has changed its code in silence"
    elif came.word != SAME:
        assert came.reason, "it is parked without a reason"


@cache
def written() -> dict[str, dict[str, str]]:
    """Read both tables of the page."""
    lines = PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    _, *same = (row for row in rows if len(row) == 2)
    (_, *states), *different = (row for row in rows if len(row) > 2)
    return {edit: dict.fromkeys(states, word) for word, edits in same for edit in edits.split("; ")} | {
        edit: dict(zip(states, words, strict=True)) for edit, *words in different
    }


def test_the_table_has_every_edit_and_every_state():
    assert written().keys() == EDITS.keys()
    assert len(EDITS) >= 20
    assert list(next(iter(written().values()))) == list(STATES)
    assert len(STATES) == 7


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(
    ("edit", "verdict"), [("another kind of step at the end", "moved"), ("no context model", "refused")]
)
def test_an_operator_moves_a_run_whole_or_not_at_all(state, edit, verdict):
    """What `flujo runs upgrade` does: also with a run that is paused, waits in a backoff, or has a fan-out open."""
    with standing(state) as (engine, run, old):
        new = EDITS[edit]().pipeline()
        plan, before = compile_plan(new), states(engine, run)
        changes = CodeChanges(engine.stores, engine._send, on_change="park", control_queue="flujo.control")
        each = partial(changes.carry_on, plan=plan)
        assert [each(one, tries=True).verdict for one in before] == [verdict] * len(before)
        assert states(engine, run) == before
        assert [each(one).verdict for one in before] == [verdict] * len(before)
        assert [each(one).verdict for one in before] == ["unneeded" if verdict == "moved" else "refused"] * len(before)
        deploy(engine, old, new if verdict == "moved" else old)
        see_through(engine, run)
        assert engine.stores.reads.read_run(run).status == "succeeded"


def states(engine, run):
    """Each run of the family, and where it is."""
    return {
        each: engine.stores.plan_moves.run_state(each) for each in (run, *(child.id for child in engine.children(run)))
    }
