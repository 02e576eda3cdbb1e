"""Steps in the background in real processes: their runs outlive who launched them, are found, answered and started again (SYS-31, U-16)."""

import asyncio
import time
from random import Random

import pytest

from flujo_client import AsyncFlujoClient, BackgroundLaunched, Flujo, FlujoClient
from flujo_client.config.models import BackgroundTasks
from flujo_client.errors import ResumeError
from tests.support.fleet import wait_until

pytestmark = pytest.mark.acceptance

SOON_S = 15.0


@pytest.fixture(scope="module", autouse=True)
def survivor(site):
    """The worker that carries on."""
    return site.workers(1)


def enqueue(site, name, client=None, **options):
    return (client or site.client).enqueue(f"background_pipelines:{name}", [], **options)


def tasks_of(site, run):
    return site.client.list_runs(parent=run.id, background=True)


def task_of(site, run):
    [record] = wait_until(lambda: tasks_of(site, run), what=site.log)
    return site.client.get_run(record.id)


def failed_of(site, run):
    return wait_until(lambda: site.client.get_failed_background_tasks(run.id), what=site.log)


def test_its_run_continues_when_the_one_that_launched_it_has_ended(site):
    run = enqueue(site, "gated", tenant="acme", deadline_s=600)
    assert_merged_once_around(site, run)
    task = task_of(site, run)
    site.wait_for_execution(task.id, "later")
    assert task.status() == "running"
    site.open_gate(task.id)
    result, record = task.result(timeout=SOON_S), task.record()
    assert (result.output, result.final_pipeline_context.visits) == (["first", "later"], ["first", "later"])
    assert (record.name, record.parent_run, record.tenant, record.deadline_at) == ("later", run.id, "acme", None)
    assert run.result().final_pipeline_context.visits == ["first", "last"]


def assert_merged_once_around(site, run):
    result = run.result(timeout=SOON_S)
    assert (result.run_status, result.output) == ("succeeded", ["first", "last"]), site.log()
    assert [event["data"]["step"] for event in site.events(run.id, "step.succeeded")] == ["first", "last"]
    assert len(site.events(run.id, "background.launched")) == 1


def test_a_worker_that_dies_right_after_the_launch_loses_nothing(site):
    """Kill -9 between the commit and the message: the row is there, and a sweep sends it."""
    marker = site.folder / "launched"
    armed = site.workers(arguments=("--queues", "launching"), failpoints=f"before_publish:kill:{marker}")
    run = enqueue(site, "launched", context={})
    wait_until(lambda: not armed.pids, what="the armed process has died")
    assert run.result(timeout=SOON_S).output == ["first"]
    task = task_of(site, run)
    assert_merged_once_in(site, task, ["first", "later"])
    assert len(site.executions(task.id)) == 1


def assert_merged_once_in(site, task, trail):
    assert task.result(timeout=SOON_S).output == trail, site.log()
    assert len(site.events(task.id, "step.succeeded")) == len(site.events(task.id, "run.succeeded")) == 1


def test_one_that_fails_is_listed_and_started_again(site):
    """U-16: the run that launched it is not told; whoever asks is."""
    run = enqueue(site, "fragile")
    assert_merged_once_around(site, run)
    [failed] = failed_of(site, run)
    assert (failed.is_background, failed.parent_run, failed.error.message) == (True, run.id, "not mended")
    context = site.client.get_run(failed.id).result().final_pipeline_context
    assert context.visits == ["first"]
    [again] = site.client.retry_failed_background_tasks(run.id)
    assert site.client.retry_failed_background_tasks(run.id) == []
    second = wait_until(lambda: [each for each in failed_of(site, run) if each.id == again.id], SOON_S)[0]
    assert (second.retry_of, second.retries, second.parent_run) == (failed.id, 1, run.id)
    assert [event["data"]["task_id"] for event in site.events(failed.id, "background.started_again")] == [again.id]
    assert site.client.retry_failed_background_tasks(run.id, max_retries=1) == []
    (site.folder / f"mended-{run.id}").touch()
    [last] = site.client.retry_failed_background_tasks(run.id)
    assert_merged_once_in(site, last, ["first", "later"])
    record = last.record()
    assert (record.started_at - record.created_at).total_seconds() >= 2.0
    assert site.client.get_failed_background_tasks(run.id) == []


def test_one_that_failed_is_resumed_with_other_data(site):
    run = enqueue(site, "fragile")
    [failed] = failed_of(site, run)
    (site.folder / f"mended-{run.id}").touch()
    again = site.client.resume_background_task(failed.id, ["other"])
    assert_merged_once_in(site, again, ["other", "later"])
    with pytest.raises(ResumeError, match=f"has already been started again as run {again.id}"):
        site.client.resume_background_task(failed.id)
    with pytest.raises(ResumeError, match="has succeeded"):
        site.client.resume_background_task(again.id)
    with pytest.raises(ResumeError, match="does not belong to a background step"):
        site.client.resume_background_task(run.id)


def test_one_that_is_started_again_knows_why(site):
    """§2.3: the context says what went wrong before."""
    run = enqueue(site, "confessing")
    [failed] = failed_of(site, run)
    seen = site.client.get_run(failed.id).result().final_pipeline_context
    (site.folder / f"mended-{run.id}").touch()
    again = site.client.resume_background_task(failed.id)
    said = "Agent execution failed with ValueError: not mended"
    assert (seen.task_id, seen.background_error, seen.background_error_category) == (failed.id, said, "agent")
    assert again.result(timeout=SOON_S).output == [again.id, said, "agent"]


def test_a_large_context_is_found_again(site):
    """It lies under its digest, and the row only points at it."""
    luggage = Random(7).randbytes(200_000).hex()
    run = enqueue(site, "fragile", context={"luggage": luggage})
    [failed] = failed_of(site, run)
    (site.folder / f"mended-{run.id}").touch()
    again = site.client.resume_background_task(failed.id)
    assert_merged_once_in(site, again, ["first", "later"])
    assert again.result().final_pipeline_context.luggage == luggage
    [row] = site.rows("SELECT length(launched_with) AS length FROM flujo_runs WHERE id = %(run)s", run=again.id)
    assert row["length"] < 1000


def test_one_may_ask_a_person(site):
    """The pipeline continues meanwhile; the awaited client answers."""
    run = enqueue(site, "asking")
    assert run.result(timeout=SOON_S).output == []
    task = task_of(site, run)
    wait_until(lambda: task.status() == "paused", what=site.log)
    with pytest.raises(ResumeError, match="is paused, and continues unless it waits for an answer"):
        site.client.resume_background_task(task.id)

    async def answer():
        async with AsyncFlujoClient(site.settings) as client:
            assert await client.get_failed_background_tasks(run.id) == []
            return (await client.resume_background_task(task.id, "yes")).id

    assert asyncio.run(answer()) == task.id
    assert task.result(timeout=SOON_S).output == "yes"


def test_one_that_passes_its_quota_fails_alone(site):
    """§2.7: its own budget; what it spends is in no other's totals."""
    quota = {"background_tasks": BackgroundTasks(max_tokens=5)}
    with FlujoClient(site.settings.model_copy(update=quota)) as client:
        run = site.client.get_run(enqueue(site, "dear", client).id)
    assert_merged_once_around(site, run)
    [failed] = failed_of(site, run)
    assert (failed.error.code, failed.tokens) == ("USAGE_LIMIT_EXCEEDED", 10)
    assert (run.status(), run.record().tokens) == ("succeeded", 0)


def test_a_cancel_of_the_one_that_launched_it_leaves_it_alone(site):
    run = enqueue(site, "gated")
    task = task_of(site, run)
    site.wait_for_execution(task.id, "later")
    run.cancel()
    site.open_gate(task.id)
    assert_merged_once_in(site, task, ["first", "later"])


def test_one_can_be_cancelled_alone(site):
    run = enqueue(site, "gated")
    task = task_of(site, run)
    assert task.cancel(reason="not needed")
    assert (task.status(), task.record().reason) == ("cancelled", "not needed")
    assert_merged_once_around(site, run)


@pytest.mark.parametrize(("name", "most"), [("wide", 4), ("rounds", 3)])
def test_each_branch_and_iteration_launches_one(site, name, most):
    run = enqueue(site, name)
    assert run.result(timeout=SOON_S).success, site.log()
    found = tasks_of(site, run)
    assert len(found) == most == len(site.events(run.id, "background.launched"))
    for each in found:
        assert site.client.get_run(each.id).result(timeout=SOON_S).success
        assert len(site.executions(each.id)) == 1


def test_no_other_run_is_touched_by_a_cleanup(site):
    """Nothing that lives is stale."""
    run = enqueue(site, "gated")
    task = task_of(site, run)
    site.wait_for_execution(task.id, "later")
    assert site.client.cleanup_stale_background_tasks() == []
    site.open_gate(task.id)
    assert_merged_once_in(site, task, ["first", "later"])


def test_one_without_a_sign_of_life_is_given_up(site):
    run = enqueue(site, "gated")
    task = task_of(site, run)
    site.wait_for_execution(task.id, "later")
    with site.connection() as connection:
        connection.execute("UPDATE flujo_sweeps SET swept_at = now() + interval '5 s'")
    time.sleep(1)  # a sweep that is under way takes milliseconds
    with site.connection() as connection:  # its worker was lost a day ago, and no one came for it
        long_ago = "now() - interval '25 hours'"
        connection.execute(
            f"UPDATE flujo_runs SET created_at = {long_ago}, started_at = {long_ago} WHERE id = %s", [task.id]
        )
        connection.execute(
            f"UPDATE flujo_attempts SET worker = NULL, status = 'ready', available_at = now() - interval '1 s', "
            f"created_at = {long_ago}, started_at = {long_ago} WHERE run_id = %s",
            [task.id],
        )
    assert site.client.cleanup_stale_background_tasks(stale_hours=24) == [task.id]
    wait_until(lambda: task.status() == "failed", SOON_S, what=site.log)
    error = task.result().error
    assert (error.code, error.message.partition(":")[0]) == ("BACKGROUND_STALE", "no activity for 24 hours")
    assert len(site.events(task.id, "background.stale")) == 1
    assert [each.id for each in site.client.get_failed_background_tasks(run.id)] == [task.id]


def test_a_stream_says_under_which_id_it_continues(site):
    """§2.3: the outcome `BackgroundLaunched`."""

    async def outcomes():
        with Flujo("background_pipelines:asking", settings=site.settings) as facade:
            return [each async for each in facade.run_stream([])]

    launched, result = asyncio.run(outcomes())
    [record] = site.client.list_runs(parent=result.run_id)
    assert launched == BackgroundLaunched(task_id=record.id, step_name="later")
