"""Every way a run can turn, at every place: one table, in real processes and in memory (SYS-10, SYS-12, M-042, C-23).

The table stands in `turn_table`, the pipelines in `turn_pipelines`. All runs go at once, on one fleet; then each is looked at.
"""

from __future__ import annotations

import asyncio
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import turn_pipelines
from container_checks import assert_nothing_left, since
from turn_table import CELLS, TURNS, as_line, ending, history, limit, tokens, trail

from flujo_client import Aborted, Failure, Flujo, Paused, Success, UsageLimits
from flujo_client.api.operations import peek_at
from flujo_client.contract.envelope import TASK_JOIN, Envelope
from flujo_client.contract.results import PipelineResult
from flujo_client.errors import FlujoError, PausedException
from flujo_client.gateway import requests
from flujo_client.serial import loads
from flujo_worker.testing import LocalEngine
from tests.support.fleet import FOLDER, PATIENCE_S, STEADY, wait_until
from tests.support.memory import asked

# One whose leases are long enough for a busy machine: an attempt whose worker loses its lease is begun again, and spends again.
pytestmark = pytest.mark.site(worker={**STEADY, "concurrency": 100})


RUNS = [cell for cell in CELLS if TURNS[cell[0]].status is not None]
REFUSED = [cell for cell in CELLS if TURNS[cell[0]].status is None]
ASKED = (PausedException, "PAUSED", "May it go out?")
"""What whoever asks for the result is told as long as a person is asked."""
each_run = pytest.mark.parametrize(("turn", "place"), RUNS)
acceptance = pytest.mark.acceptance


def limits(turn, place):
    return UsageLimits(total_tokens_limit=limit(turn, place))


def holds(turn, place, result: PipelineResult, child: Any) -> None:
    """The cell came to what the table says."""
    row, spent = TURNS[turn], tokens(turn, place)
    assert result.run_status == row.status, result.error
    assert as_line(result.step_history, child) == history(turn, place)
    assert result.final_pipeline_context.trail == trail(turn, place)
    assert (result.total_tokens, result.total_cost_usd) == (spent, spent / 40)
    raised, code, said = ending(result)
    assert (raised, code) == (row.raises, row.code)
    assert re.search(row.says.format(run=result.run_id, limit=limit(turn, place), spent=spent), said), said


@pytest.fixture(scope="module")
def runs(site):
    """Every run of the table, turned and ended; how long that took is printed."""
    started = time.monotonic()
    site.workers(2)
    made = {(turn, place): enqueued(site.client, turn, place) for turn, place in RUNS}
    asked = {run.id: turn for (turn, _), run in made.items() if TURNS[turn].answers}
    wait_until(lambda: set(seen(site, asked).values()) == {"paused"}, what=lambda: f"{seen(site, asked)} {site.log()}")
    assert asked.keys() <= {each.id for each in site.client.list_runs(status="paused", limit=1000)}
    assert {ending(site.client.perform(peek_at(site.settings, each))) for each in asked} == {ASKED}
    stop(site, [run for (turn, _), run in made.items() if turn == "cancel"])
    wait_until(lambda: answer_all(site, asked), what=lambda: f"{site.rows(LIVE)} {site.log()}")
    print(f"{len(made)} runs: {since(started)}")
    yield made
    site.dismiss()


LIVE = "SELECT id, status FROM flujo_runs WHERE ended_at IS NULL"
WAITING = "SELECT split_part(run_id, '.', 1) AS run FROM flujo_attempts WHERE step = 'wait' AND status = 'running'"


def enqueued(client, turn, place):
    return client.enqueue(f"turn_pipelines:{turn}_in_{place}", "in", limits=limits(turn, place))


def seen(site, runs):
    """What runs are seen as."""
    return site.client.ask(requests.statuses(list(runs)))


def stop(site, doomed):
    """Cancel runs, each where it waits."""
    wait_until(lambda: {run.id for run in doomed} <= {row["run"] for row in site.rows(WAITING)}, what=site.log)
    with ThreadPoolExecutor(len(doomed)) as pool:
        assert all(pool.map(lambda run: run.cancel(reason="never mind", actor="ana"), doomed))


def answer_all(site, asked) -> bool:
    """Answer whatever is asked, and tell whether all runs have ended."""
    for question in site.client.approvals(limit=1000):
        said = TURNS[asked[question.run_id.partition(".")[0]]].answers
        site.client.get_run(question.run_id).resume(said, address=question.address, actor="ana")
    return not site.rows(LIVE)


@acceptance
@pytest.mark.usefixtures("runs")
def test_no_attempt_is_lost_and_none_spends_twice(site):
    """M-013, C-10: a spend is recorded once for each claim. Only a lost worker makes a second claim, and no worker is lost here."""
    assert site.rows("SELECT key, losses FROM flujo_attempts WHERE losses > 0") == [], site.log()
    assert site.rows("SELECT key, count(*) FROM flujo_spends GROUP BY key HAVING count(*) > 1") == []


@acceptance
@each_run
def test_a_run_turns_in_real_processes_as_the_table_says(site, runs, turn, place):
    """M-042, M-406, M-441, M-449, C-19, C-20, C-23: status, history, context, cost and the exception, cell by cell."""
    run = runs[turn, place]
    holds(turn, place, run.result(timeout=PATIENCE_S), lambda child: site.client.get_run(child).result(PATIENCE_S))
    assert_nothing_left(site, run)
    overrun = 5 if turn == "limit" else 0  # M-435, C-10: settled once, and what passed the limit is booked apart
    [row] = site.rows("SELECT * FROM flujo_budgets WHERE scope = %(scope)s", scope=f"run:{run.id}")
    assert (row["settled_tokens"], row["overrun_tokens"]) == (tokens(turn, place) - overrun, overrun)
    assert (row["reserved_tokens"], row["reserved_usd"]) == (0, 0)


@acceptance
@pytest.mark.parametrize(("turn", "place"), REFUSED)
def test_a_circle_of_fallbacks_is_refused_before_anything_is_recorded(site, turn, place):
    """M-406, C-23: the client says so itself."""
    before = len(site.rows("SELECT id FROM flujo_runs"))
    refuses(turn, lambda: enqueued(site.client, turn, place))
    assert len(site.rows("SELECT id FROM flujo_runs")) == before


@acceptance
def test_a_stream_tells_of_an_abort(site, runs):
    """Requirements §2.4: an `Aborted` before the result, which has it too."""
    *steps, signal, result = streamed(site, "abort")
    assert [type(each) for each in steps] == [Success, Success, Failure]
    assert signal == Aborted(reason="enough")
    assert result.signals == [signal]


@acceptance
def test_a_stream_ends_with_a_pause(site, runs):
    """Requirements §2.4: a `Paused` with the question, before what there is of the result."""
    *steps, signal, result = streamed(site, "pause")
    assert [each.step_result.name for each in steps] == ["before", "draft"]
    assert signal == Paused(message="May it go out?", step="ask")
    assert (result.run_status, result.signals) == ("paused", [signal])
    assert site.client.get_run(result.run_id).cancel()


def streamed(site, turn):
    async def collect():
        with Flujo(f"turn_pipelines:{turn}_in_top", settings=site.settings) as flujo:
            return [each async for each in flujo.run_stream("in")]

    return asyncio.run(collect())


@each_run
def test_a_run_turns_in_memory_as_the_table_says(turn, place, tmp_path, monkeypatch):
    """The same table, the other engine."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    with LocalEngine() as engine:
        pipeline = getattr(turn_pipelines, f"{turn}_in_{place}")
        run = engine.enqueue(pipeline, "in", limits=limits(turn, place))
        if turn == "cancel":
            cancel_at_wait(engine, run)
        engine.drain()
        waits = TURNS[turn].answers is not None
        assert engine.stores.reads.status(run) == ("paused" if waits else TURNS[turn].status)
        assert not waits or ending(engine.result(run)) == ASKED
        while asked := engine.approvals(run):
            engine.answer(run, TURNS[turn].answers, address=asked[0].address)
        holds(turn, place, engine.result(run), engine.result)


def cancel_at_wait(engine, run):
    """Cancel the run when the step that waits is about to begin."""
    while not _waits(loads(engine.bus[0])):
        engine.deliver(engine.bus.popleft())
    assert asked(engine.stores).request_cancel(run, "never mind")


def _waits(wire):
    return wire["task"] != TASK_JOIN and Envelope.from_wire(wire).step == "wait"


@pytest.mark.parametrize(("turn", "place"), REFUSED)
def test_a_circle_of_fallbacks_is_refused_in_memory(engine, turn, place):
    refuses(turn, lambda: engine.enqueue(getattr(turn_pipelines, f"{turn}_in_{place}"), "in"))


def refuses(turn, enqueue):
    row = TURNS[turn]
    with pytest.raises(FlujoError, match=row.says) as refused:
        enqueue()
    assert (type(refused.value), refused.value.error_code) == (row.raises, row.code)
