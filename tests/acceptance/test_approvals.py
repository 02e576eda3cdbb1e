"""People in the loop over real workers: a question holds nobody, and an answer is acted upon once, whatever dies meanwhile."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from fleet import PATIENCE_S, wait_until

from flujo_client.errors import ResumeError

pytestmark = pytest.mark.acceptance

YES = {"approved": True, "why": "fine"}


def paused(site, name, value=None):
    """A run of `human_pipelines` that has come to its question."""
    run = site.client.enqueue(f"human_pipelines:{name}", value or [])
    wait_until(lambda: run.status() == "paused", what=site.log)
    return run


def age(site, run, seconds):
    """Make a run older: its question was asked so long ago."""
    older = "make_interval(secs => %(s)s)"
    with site.connection() as connection:
        for table, columns, by in (
            ("attempts", ("available_at", "created_at"), "run_id"),
            ("runs", ("created_at", "started_at"), "id"),
        ):
            moves = ", ".join(f"{column} = {column} - {older}" for column in columns)
            connection.execute(f"UPDATE flujo_{table} SET {moves} WHERE {by} = %(run)s", {"s": seconds, "run": run.id})


def test_a_run_waits_for_a_person_and_goes_on(site):
    """M-449, M-451: the status is seen in run and context together; no message and no worker waits."""
    fleet = site.workers(1)
    run = paused(site, "approval")
    record, [asked] = run.record(), run.approvals()
    assert (record.status, asked.step, asked.message) == ("paused", "ask", "May it go out?")
    assert [each.run_id for each in site.client.approvals(pipeline="approval")] == [run.id]
    assert [each.id for each in site.client.list_runs(status="paused")] == [run.id]
    assert site.redis.llen("flujo.attempts") == 0
    run.resume(YES, actor="ana", note="checked")
    result = run.result(timeout=PATIENCE_S)
    assert (result.run_status, result.output) == ("succeeded", {"approved": True, "why": "fine", "asked": 1}), (
        site.log()
    )
    assert result.final_pipeline_context.hitl_history[0].actor == "ana"
    assert result.final_pipeline_context.status.value == "running"
    fleet.kill()
