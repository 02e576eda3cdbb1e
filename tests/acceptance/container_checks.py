"""Checks of the acceptance tests of containers: enqueue with a context, count signals and joins, see that nothing is left."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from flujo_client.api.handle import RunHandle
from flujo_client.contract.results import PipelineResult, StepResult
from tests.support.fleet import PATIENCE_S, Site, whole_lines

LIVE = ["ready", "queued", "running"]
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


def enqueue(site: Site, name: str, value: Any = None, **context: Any) -> RunHandle:
    """Enqueue a pipeline of `container_pipelines` with these fields in its context."""
    return site.client.enqueue(f"container_pipelines:{name}", value, context=context)


def succeeded(site: Site, run: RunHandle) -> PipelineResult:
    """Wait for the run's success, and see that each of its fan-outs was joined once and nothing is left."""
    result = run.result(timeout=PATIENCE_S)
    assert result.run_status == "succeeded", (result.error, site.log())
    assert_joined_once(site, run)
    return result


def assert_joined_once(site: Site, run: RunHandle) -> None:
    """Each fan-out of an ended run: one join row, signalled once, concluded once; and nothing of the run lives."""
    waiting = site.rows("SELECT address FROM flujo_scopes WHERE run_id = %(run)s AND waiting", run=run.id)
    fan_outs = Counter(row["address"] for row in waiting)
    rows = [each for each in site.attempts(run.id) if each["kind"] == "join"]
    rung = [event["attempt"].split(":")[1] for event in site.events(run.id, "join.rung")]
    assert Counter(each["address"] for each in rows) == Counter(rung) == fan_outs
    assert {each["status"] for each in rows} <= {"succeeded", "failed"}
    assert_nothing_left(site, run)


def assert_nothing_left(site: Site, run: RunHandle) -> None:
    """The run has no live attempt and no open scope."""
    attempts = "SELECT key, status FROM flujo_attempts WHERE run_id = %(run)s AND status = ANY(%(live)s)"
    scopes = "SELECT address FROM flujo_scopes WHERE run_id = %(run)s AND status = 'open'"
    assert site.rows(attempts, run=run.id, live=LIVE) == []
    assert site.rows(scopes, run=run.id) == []


def rings(site: Site, runs: Iterable[RunHandle]) -> Counter[str]:
    """Who signalled the joins of these runs, and how often."""
    rung = "SELECT data ->> 'by' AS by FROM flujo_events WHERE name = 'join.rung' AND run_id = ANY(%(runs)s)"
    return Counter(row["by"] for row in site.rows(rung, runs=[run.id for run in runs]))


def begun_in(site: Site) -> dict[str, Counter[str]]:
    """How often each label of each run was begun. The journal is read once for all of them."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for line in whole_lines(site.folder / "journal"):
        run, label, *_ = line.split()
        found[run][label] += 1
    return found


def starts(site: Site, run: RunHandle) -> Counter[str]:
    """How often each label of one run was begun."""
    return begun_in(site)[run.id]


def told_of(steps: Iterable[StepResult]) -> list[Any]:
    """Step results as plain data, down to the leaves, without the time they took."""
    here = {"latency_s", "step_history"}
    return [each.model_dump(exclude=here) | {"inside": told_of(each.step_history)} for each in steps]


def since(started: float) -> str:
    """Seconds since a moment, for printing."""
    return f"{time.monotonic() - started:.1f} s"
