"""A concurrency limit over real processes: a killed worker's place is free again, and no two are ever taken (U-13)."""

import signal
import time

import pytest
from frozen_pipelines import AT_ONCE

from flujo_client.gateway import operator_requests
from tests.support.fleet import BRISK, assert_merged_once, one_process, wait_until, whole_lines

pytestmark = [pytest.mark.acceptance, one_process, pytest.mark.site(worker=BRISK)]


def enqueue(site):
    return site.client.enqueue("limit_pipelines:limited", [])


def test_the_place_of_a_killed_worker_is_free_again(site):
    """U-13, M-013: kill -9 of the one that has the only place; the others run one after another, in their first attempts."""
    fleet, first = site.workers(), enqueue(site)
    site.wait_for_execution(first.id, "gate")
    others = [enqueue(site) for _ in range(3)]
    wait_until(lambda: all(site.events(run.id, "flujo.limit.waiting") for run in others), what=site.log)
    assert [len(site.executions(run.id)) for run in others] == [0, 0, 0]
    [limit] = site.client.ask(operator_requests.limits_in_use())
    assert (limit.name, limit.at_once, limit.in_use, limit.waiting) == ("gate", 1, 1, 3)
    site.workers()
    fleet.kill()
    runs = [first, *others]
    for run in runs:
        site.open_gate(run.id)
    for run in runs:
        assert_merged_once(site, run, ["gate"])
    rows = [row for run in runs for row in site.attempts(run.id)]
    assert [row["number"] for row in rows] == [1, 1, 1, 1]
    assert (site.folder / "places").read_text().split() == ["entered", *["entered", "left"] * 4]  # the first was killed
    assert site.rows("SELECT key FROM flujo_permits WHERE fence IS NULL") == []


def test_a_newer_run_replaces_the_one_that_has_the_place(site):
    """U-13: the attempt that runs is cancelled, and the new one begins when it has ended."""
    site.workers()
    old = site.client.enqueue("limit_pipelines:replacing", [])
    site.wait_for_execution(old.id, "gate")
    new = site.client.enqueue("limit_pipelines:replacing", [])
    site.wait_for_execution(new.id, "gate")
    assert old.result(timeout=60).run_status == "cancelled"
    assert old.record().reason == f"replaced by run {new.id} (limit 'cancel_oldest')"
    site.open_gate(new.id)
    assert_merged_once(site, new, ["gate"])


def test_a_run_beyond_a_limit_that_drops_fails_without_having_begun(site):
    """U-13: while another worker process has the place."""
    site.workers(2)
    held = site.client.enqueue("limit_pipelines:dropping", [])
    site.wait_for_execution(held.id, "gate")
    refused = [site.client.enqueue("limit_pipelines:dropping", []) for _ in range(3)]
    assert {run.result(timeout=60).error.code for run in refused} == {"LIMIT_REACHED"}
    assert [site.executions(run.id) for run in refused] == [[], [], []]
    site.open_gate(held.id)
    assert_merged_once(site, held, ["gate"])


def test_steps_of_a_worker_that_wakes_do_not_go_on_beside_those_that_have_their_places(site):
    """U-13: a worker frozen past its lease wakes up. An async step gets at most to its next `await`: it may have been frozen on the way there."""
    site.dismiss()
    frozen = site.workers()
    first = [site.client.enqueue("frozen_pipelines:limited", None) for _ in range(AT_ONCE)]
    wait_until(lambda: {run.id for run in first} <= beating(site), what=site.log)
    others = [site.client.enqueue("frozen_pipelines:limited", None) for _ in range(AT_ONCE)]
    wait_until(lambda: all(site.events(run.id, "flujo.limit.waiting") for run in others), what=site.log)
    frozen.signal(signal.SIGSTOP)
    time.sleep(0.1)  # it stops at once; a line that it was about to write is written by now
    stopped = time.monotonic()
    other = site.workers()
    wait_until(lambda: len(beating(site, other.pids)) == AT_ONCE, what=site.log)
    frozen.signal(signal.SIGCONT)
    woken = time.monotonic()
    wait_until(lambda: frozen.pids <= site.live_pids(), what=site.log)
    wait_until(lambda: len(beating(site, other.pids, woken)) == AT_ONCE, what=site.log)
    late = [line for line in lines(site) if int(line[1]) in frozen.pids and float(line[2]) > stopped]
    assert len({run for run, *_ in late}) == len(late), "a step continued after its next `await`"
    (site.folder / "enough").touch()
    for run in (*first, *others):
        assert run.result(timeout=60).run_status == "succeeded", (run.result().error, site.log())
    assert site.stuck() == []


def beating(site, pids=None, since=0.0):
    """Return the runs whose code has run in these processes since a moment."""
    return {run for run, pid, at in lines(site) if (pids is None or int(pid) in pids) and float(at) > since}


def lines(site):
    """Return the lines that steps have written: run, process, moment."""
    return [line.split() for line in whole_lines(site.folder / "beats")]
