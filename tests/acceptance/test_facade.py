"""`Flujo(pipeline)` and `TaskClient` on real workers, and on nothing at all."""

import asyncio
import subprocess
import sys
from pathlib import Path

import acceptance_pipelines as pipelines
import pytest

from flujo_client import AsyncFlujoClient, Failure, Flujo, PipelineResult, Success, TaskClient
from flujo_client.errors import ClientError, IdempotencyConflict, ResumeError
from tests.support.fleet import BRISK, wait_until

pytestmark = [pytest.mark.services, pytest.mark.acceptance, pytest.mark.site(worker=BRISK)]


@pytest.fixture(scope="module")
def working(site):
    site.workers(1)
    return site


def test_run_gives_the_result(working):
    """M-032: the familiar facade is enqueue and wait."""
    with Flujo(pipelines.three, settings=working.settings) as flujo:
        result = flujo.run([], timeout=60)
    assert result.success
    assert [step.name for step in result.step_history] == ["first", "second", "third"]


def test_context_data_of_the_facade_and_of_the_run_are_joined(working):
    """§2.1: initial context data, the run's own over the facade's."""
    data = {"luggage": "bag", "visits": ["home"]}
    with Flujo(pipelines.three, initial_context_data=data, settings=working.settings) as flujo:
        context = flujo.run([], initial_context_data={"luggage": "suitcase"}, timeout=60).final_pipeline_context
    assert (context.luggage, context.visits[0], len(context.visits)) == ("suitcase", "home", 4)


def test_a_stream_yields_each_step_and_then_the_result(working):
    """§2.1: typed outcomes, in order."""

    async def collect(name):
        with Flujo(f"acceptance_pipelines:{name}", settings=working.settings) as flujo:
            return [each async for each in flujo.run_stream([])]

    *outcomes, result = asyncio.run(collect("three"))
    assert [type(each) for each in outcomes] == [Success] * 3
    assert isinstance(result, PipelineResult)
    *_, failure, result = asyncio.run(collect("shouting"))
    assert isinstance(failure, Failure)
    assert (failure.feedback, result.status) == (result.step_history[-1].feedback, "failed")


def test_a_run_is_gone_on_with_by_whoever_knows_its_id(working):
    """§2.1: another process, or the same one after its wait was cut short; an answer no one asked for is refused."""
    with Flujo(pipelines.three, settings=working.settings) as flujo:
        run = flujo.start([])
        result = asyncio.run(flujo.resume_async(run.id))
        assert asyncio.run(flujo.resume_async(result)) == result
        with pytest.raises(ResumeError, match="is succeeded"):
            asyncio.run(flujo.resume_async(result, human_input={"approved": True}))
    assert result.success


def test_a_run_that_asks_comes_back_paused_and_is_gone_on_with(working):
    """§2.1 `resume_async(paused_result, human_input)`, §2.2 `resume_task`."""

    async def ask_again():
        async with TaskClient(working.settings) as tasks:
            run = working.client.enqueue("human_pipelines:approval", [])
            await asyncio.to_thread(wait_until, lambda: run.status() == "paused")
            return await tasks.resume_task(run.id, {"approved": False}, actor="ana")

    with Flujo("human_pipelines:approval", settings=working.settings) as flujo:
        paused = flujo.run([])
        assert (paused.run_status, paused.final_pipeline_context.pause_message) == ("paused", "May it go out?")
        result = asyncio.run(flujo.resume_async(paused, {"approved": True}))
    assert result.output["approved"] is True
    assert asyncio.run(ask_again()).step == "ask"


def test_the_async_client_has_the_same_verbs(working):
    """Design §7: the same names, awaited."""

    async def use():
        async with AsyncFlujoClient(working.settings) as client:
            run = await client.enqueue(pipelines.three, [], metadata={"order": 17})
            result = await run.result(timeout=60)
            listed = await client.list_runs(metadata={"order": 17})
            trace, events = await run.trace(), await run.events()
            return result, [each.id for each in listed] == [run.id], trace.status, events[-1].name, await run.status()

    result, is_listed, status, last, said = asyncio.run(use())
    assert result.success
    assert is_listed
    assert (status, last, said) == ("succeeded", "run.succeeded", "succeeded")


def test_task_client_is_thin_names_over_the_client(working):
    """§2.2."""

    async def use():
        run = working.enqueue("three")
        run.result(timeout=60)
        async with TaskClient(working.settings) as tasks:
            listed = await tasks.list_tasks(status="succeeded", limit=100)
            return run.id in [each.id for each in listed], await tasks.get_task(run.id), await tasks.cancel_task(run.id)

    assert asyncio.run(use())[0]
    _, result, was_cancelled = asyncio.run(use())
    assert result.success
    assert was_cancelled is False


def test_a_run_id_of_your_own_is_the_runs_and_finds_it_again(working):
    """§2.1 `run(input, run_id=…)`: the same id again is the same run, for whoever asks; for other work it is refused."""
    with Flujo(pipelines.three, settings=working.settings, pipeline_id="letters") as flujo:
        result = flujo.run([], run_id="order-17", timeout=60)
        assert (result.run_id, len(result.step_history)) == ("order-17", 3)
        assert flujo.run([], run_id="order-17", timeout=60) == result
        assert [
            each.run_id for each in flujo.run_outcomes([], run_id="order-17") if isinstance(each, PipelineResult)
        ] == ["order-17"]
        with pytest.raises(IdempotencyConflict, match="run order-17 exists"):
            flujo.run(["another"], run_id="order-17")
        with pytest.raises(IdempotencyConflict, match="run order-17 exists"):
            working.client.enqueue(pipelines.three, [], run_id="order-17", tenant="somebody else")
        assert [each.id for each in flujo.client.list_runs(metadata={"pipeline_id": "letters"})] == ["order-17"]
        assert len(flujo.client.get_run("order-17").record().metadata) == 1


def test_a_run_is_told_with_its_events(working):
    """§2.1 `run_with_events`: all of them, in order, and the result last; `async with` closes the facade."""

    async def collect(name):
        async with Flujo(f"{name}", settings=working.settings) as flujo:
            return [each async for each in flujo.run_with_events([])]

    *events, result = asyncio.run(collect("acceptance_pipelines:three"))
    assert result.success
    assert [each.name for each in events] == [each.name for each in working.client.get_run(result.run_id).events()]
    assert events[-1].name == "run.succeeded"
    *events, paused = asyncio.run(collect("human_pipelines:approval"))
    assert (paused.run_status, events[-1].name) == ("paused", "flujo.paused")


def test_outcomes_come_without_asyncio_too(working):
    """§2.1 `run_outcomes`."""
    with Flujo(pipelines.three, settings=working.settings) as flujo:
        *outcomes, result = flujo.run_outcomes([])
    assert [type(each) for each in outcomes] == [Success] * 3
    assert [each.step_result for each in outcomes] == result.step_history


def test_statuses_are_asked_for_in_the_originals_words_too(working):
    """§2.2 `list_tasks(status=…)`: `completed` is `succeeded` here; a word that no one knows is refused."""

    async def listed(status):
        async with TaskClient(working.settings) as tasks:
            return [each.id for each in await tasks.list_tasks(status=status, limit=1000)]

    run = working.enqueue("three")
    run.result(timeout=60)
    assert run.id in asyncio.run(listed("completed"))
    assert asyncio.run(listed("completed")) == [
        each.id for each in working.client.list_runs(status="succeeded", limit=1000)
    ]
    assert asyncio.run(listed("unknown")) == []
    with pytest.raises(ClientError, match=r"`status` must be one of queued, .*, completed, unknown, got 'done'"):
        asyncio.run(listed("done"))
    with pytest.raises(ClientError, match="got 'done'"):
        working.client.list_runs(status="done")


SCRIPT = """
from flujo_client import Flujo, Pipeline, step


@step
async def double(value: int) -> int:
    return 2 * value


pipeline = Pipeline([double])

if __name__ == "__main__":
    with Flujo(pipeline) as flujo:
        print(flujo.run(21).output)
"""


@pytest.mark.large
def test_a_script_needs_nothing_running(server_folder):
    """Design §7: with nothing set, services and a worker are started, used, and stopped."""
    (server_folder / "first.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "first.py"], cwd=server_folder, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.stdout == "42\n", done.stderr
    left = subprocess.run(["pgrep", "-f", str(server_folder)], capture_output=True, text=True, check=False).stdout
    assert left == ""


@pytest.mark.installation
def test_workers_stop_when_whoever_started_them_was_killed(server_folder):
    """Nothing lingers after kill -9 of an owner: neither its services nor its workers."""
    hold = SCRIPT.replace(
        "print(flujo.run(21).output)", "print(flujo.run(21).output, flush=True); import time; time.sleep(60)"
    )
    (server_folder / "hold.py").write_text(hold)
    owner = subprocess.Popen([sys.executable, "hold.py"], cwd=server_folder, stdout=subprocess.PIPE, text=True)
    assert owner.stdout.readline() == "42\n"
    workers = subprocess.run(
        ["pgrep", "-P", str(owner.pid), "-f", "flujo_worker worker"], capture_output=True, text=True, check=True
    )
    owner.kill()
    owner.wait()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers.stdout.split()), what="workers linger")


NO_WORKER = """
from first import pipeline
from flujo_client import FlujoClient
from flujo_client.errors import WaitTimedOut

with FlujoClient() as client:
    run = client.enqueue(pipeline, 21)
    try:
        run.result(timeout=3)
    except WaitTimedOut as error:
        print(error)
"""


@pytest.mark.installation
def test_a_client_with_embedded_services_says_at_once_that_there_is_no_worker(server_folder):
    """Before the timeout and before the first look of other clients."""
    (server_folder / "first.py").write_text(SCRIPT)
    (server_folder / "client.py").write_text(NO_WORKER)
    done = subprocess.run(
        [sys.executable, "client.py"], cwd=server_folder, capture_output=True, text=True, timeout=240, check=True
    )
    assert "makes no progress: waits at double: no worker is alive" in done.stderr
    assert "`flujo up`" in done.stderr
    assert "still queued after 3 s; waits at double: no worker is alive" in done.stdout
