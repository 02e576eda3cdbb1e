"""What an attempt holds open in real processes, and the fixed order of its parts (SYS-11)."""

import pytest
import resource_pipelines as pipelines

from flujo_client import Flujo
from flujo_worker.testing import LocalEngine
from tests.support.fleet import FOLDER, wait_until, whole_lines

in_workers = pytest.mark.acceptance


def notes(folder, run):
    return whole_lines(folder / f"notes-{run}")


def enqueued(site, name, value=None):
    return site.client.enqueue(f"resource_pipelines:{name}", [] if value is None else value)


def test_every_part_has_its_place_in_one_process(tmp_path, monkeypatch):
    """M-049: processors, agent, AROS, processors, plugins by priority, validators, context, with the resources around them."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    with LocalEngine() as engine:
        result = engine.run(pipelines.every_part, "in")
    assert notes(tmp_path, result.run_id) == pipelines.ORDER
    assert (result.output, result.final_pipeline_context.kept) == ({"n": 1}, {"n": 1})


@in_workers
def test_every_part_has_its_place_in_a_worker(site):
    """M-049: the same."""
    site.standing()
    run = enqueued(site, "every_part", "in")
    result = run.result(timeout=60)
    assert (result.run_status, notes(site.folder, run.id)) == ("succeeded", pipelines.ORDER)
    names = [
        event["name"] for event in site.events(run.id, "output.coercion.success", "step.succeeded", "run.succeeded")
    ]
    assert names[0] == "output.coercion.success"
    assert names[-2:] == ["step.succeeded", "run.succeeded"]


@in_workers
def test_a_timeout_leaves_what_its_attempt_entered(site):
    """§2.4: each attempt its own, once."""
    site.standing()
    run = enqueued(site, "too_slow")
    assert run.result(timeout=60).run_status == "failed"
    assert notes(site.folder, run.id) == ["enter", "exit TimeoutError"] * 2


@in_workers
def test_a_cancel_leaves_what_the_attempt_entered(site):
    """M-010: the worker is told, and cleans up."""
    site.standing()
    run = enqueued(site, "waiting")
    site.wait_for_execution(run.id, "gate")
    assert run.cancel()
    wait_until(lambda: len(notes(site.folder, run.id)) > 1, what=site.log)
    assert notes(site.folder, run.id) == ["enter", "exit CancelledError"]


@in_workers
def test_what_a_killed_worker_held_is_opened_again_by_the_next_delivery(site):
    """M-013: nothing leaves what a dead process held; who takes over opens its own, and leaves it once."""
    site.standing()
    run = enqueued(site, "waiting")
    site.wait_for_execution(run.id, "gate")
    site.dismiss()
    site.standing()
    site.wait_for_execution(run.id, "gate", times=2)
    site.open_gate(run.id)
    assert run.result(timeout=60).output == ["gate", "open: True"]
    assert notes(site.folder, run.id) == ["enter", "enter", "exit"]


@in_workers
def test_the_facades_resources_reach_the_workers_by_name(site):
    """§2.1: a pipeline that names none gets those that `Flujo` is given."""
    site.standing()
    with Flujo(pipelines.bare, resources=pipelines.pool, settings=site.settings) as flujo:
        run = flujo.start([])
        site.open_gate(run.id)
        result = run.result(timeout=60)
    assert result.output == ["gate", "open: True"]
    assert notes(site.folder, run.id) == ["enter", "exit"]
