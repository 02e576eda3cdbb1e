"""What must not wait for a renewal or a sweep, in workers that renew and sweep rarely."""

import time
from statistics import median

import pytest

from tests.support.fleet import PATIENCE_S, wait_until, whole_lines

# Nobody sweeps or renews in time: a step that hears of anything, or is tried again, does not owe it to that.
pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.site(worker={"sweep_s": 3600, "lease_s": 120.0, "renew_s": 30.0}, workers=2),
]

RUNS = 5
TOLD_S = 0.5
ENDED = (
    "SELECT extract(epoch FROM ended_at)::float8 AS at FROM flujo_attempts WHERE run_id = %(run)s AND step = 'fails'"
)


def moments(site, run):
    return [(what, float(at)) for what, at in map(str.split, whole_lines(site.folder / f"moments-{run.id}"))]


def moment(site, run, what):
    return wait_until(lambda: dict(moments(site, run)).get(what), what=site.log)


def enqueued(site, name):
    return [site.client.enqueue(f"moment_pipelines:{name}", "in") for _ in range(RUNS)]


def test_the_running_step_of_a_cancelled_run_hears_of_it(site):
    """G9."""
    runs = enqueued(site, "working")
    for run in runs:
        moment(site, run, "begun")
    time.sleep(1.0)  # what they hear is not to be due to the moment at which they began
    late = []
    for run in runs:
        assert run.cancel()
        cancelled_at = time.time()
        late.append(moment(site, run, "told") - cancelled_at)
    assert median(late) < TOLD_S, late


def test_the_siblings_of_a_failed_branch_hear_of_it(site):
    """G9: `propagate` stops them; they go on spending until they know."""
    runs, late = [], []
    for _ in range(3):  # one after the other: a worker hears of all of its runs at once
        runs += [run := site.client.enqueue("moment_pipelines:siblings", "in")]
        late.append(moment(site, run, "told") - site.rows(ENDED, run=run.id)[0]["at"])
    assert median(late) < TOLD_S, late
    assert {run.result(timeout=PATIENCE_S).run_status for run in runs} == {"failed"}


def test_a_short_backoff_is_not_rounded_up_to_a_sweep(site):
    """G6: a tenth of a second, timed by the worker that waits."""
    runs = enqueued(site, "hasty")
    assert {run.result(timeout=PATIENCE_S).output for run in runs} == {"done"}
    waits = [second - first for (_, first), (_, second) in (moments(site, run) for run in runs)]
    assert min(waits) >= 0.1
    assert median(waits) < 0.5, waits
