"""One fleet, and what every run may ask of it."""

import asyncio
import random
from collections import Counter, defaultdict
from fractions import Fraction

import pytest
from acceptance_pipelines import LARGE, UGLY, Listing, Visits, gather
from pydantic import HttpUrl

from flujo_client import AsyncFlujoClient
from tests.support.fleet import assert_merged_once, one_process, wait_until

pytestmark = pytest.mark.acceptance

STOPPING = "SELECT 1 FROM flujo_workers WHERE stop_requested_at IS NOT NULL AND ended_at IS NULL"


@pytest.fixture(scope="module", autouse=True)
def fleet(site):
    return site.workers(1)


def test_a_run_goes_through_broker_and_workers(site):
    """M-001, M-010."""
    run = site.enqueue("three")
    assert_merged_once(site, run, ["first", "second", "third"])
    assert len(site.executions(run.id)) == 3


def test_every_attempt_is_a_task_of_its_own(site):
    """M-004: an agent that fails twice gives three messages of Celery, for attempts 1, 2, 3, and one step in the history."""
    with site.watched_broker() as pushed:
        run = site.enqueue("stubborn")
        result = run.result(timeout=60)
        keys = [f"{run.id}::stubborn:{number}" for number in (1, 2, 3)]
        wait_until(lambda: set(keys) <= set(pushed))
    assert [pushed[key] for key in keys] == ["flujo.attempt"] * 3
    assert [each.attempt for each in site.executions(run.id, "stubborn")] == [1, 2, 3]
    stubborn = run.trace().children[1]
    assert [each.attributes["key"] for each in stubborn.children] == [f"{run.id}::stubborn:{n}" for n in (1, 2, 3)]
    assert [each.status for each in stubborn.children] == ["failed", "failed", "succeeded"]
    assert [(step.name, step.attempts) for step in result.step_history] == [("before", 1), ("stubborn", 3)]
    assert result.output == ["before", "stubborn"]


def test_a_failed_attempt_leaves_the_context_as_it_was(site):
    """M-006: each failing attempt had changed its copy; only the third one's copy was merged."""
    run = site.enqueue("stubborn")
    assert run.result(timeout=60).final_pipeline_context.visits == ["before", "failed stubborn"]
    assert [event["data"]["step"] for event in site.events(run.id, "step.succeeded")] == ["before", "stubborn"]


def test_large_values_travel_by_reference_and_come_back_whole(site):
    """M-005, M-010: two megabytes of input context and of output are stored once and pointed at."""
    luggage = random.Random(1).randbytes(LARGE // 2).hex()
    run = site.enqueue("large", context=Visits(luggage=luggage))
    queued = site.rows("SELECT context FROM flujo_scopes WHERE run_id = %(run)s", run=run.id)
    result = run.result(timeout=60)
    assert bytes(queued[0]["context"]).startswith(b"#")
    enlarged = result.step_history[0].output
    assert result.output == [LARGE, len(luggage) + LARGE]
    assert result.final_pipeline_context.luggage == luggage + enlarged[::-1]
    assert bytes(site.attempts(run.id)[0]["output"]).startswith(b"#")


def test_values_arrive_with_the_types_of_libraries_and_generic_models(site):
    """In the next step, in another process, and on the client."""
    run = site.enqueue("listing")
    result = run.result(timeout=60)
    name, seen = result.output
    gathered = result.step_history[0].output
    assert name == "Listing[Fraction]"
    assert type(seen) is type(gathered) is Listing[Fraction]
    assert seen == gathered == gather(None)
    assert [type(each) for each in vars(gathered).values()] == [list, HttpUrl, Counter, defaultdict, Fraction]
    assert gathered.by["new"] == []


def test_a_run_is_begun_again_at_a_step(site):
    """A retry is a separate run, over broker and workers; what was done before is not done again."""
    run = site.enqueue("large", context=Visits(luggage="bag"), metadata={"order": 17})
    first = run.result(timeout=60)
    again = run.retry("measure", idempotency_key="again")
    result = again.result(timeout=60)
    assert (result.run_status, result.output) == ("succeeded", first.output)
    assert result.final_pipeline_context == first.final_pipeline_context
    assert [step.output for step in result.step_history] == [step.output for step in first.step_history]
    assert [each.step for each in site.executions(again.id)] == ["measure"]
    assert again.record().metadata == {"order": 17}
    assert (asyncio.run(retried(site, run.id)), run.events()[-1].name) == (again.id, "run.forked")
    assert [event.name for event in again.events()][:2] == ["run.enqueued", "run.forked"]


async def retried(site, run):
    """The same retry again, awaited."""
    async with AsyncFlujoClient(site.settings) as client:
        found = await client.get_run(run)
        return (await found.retry("measure", idempotency_key="again")).id


def test_text_that_postgres_does_not_take_stops_no_run(site):
    """M-428, U-20: NUL and lone surrogates in an output, in the context, in what an agent logs and in the names of its events."""
    run = site.enqueue("muttering")
    result = run.result(timeout=60)
    assert result.output == ["first", "second"]
    assert result.final_pipeline_context.luggage == UGLY
    assert len([event for event in run.events() if event.name.startswith("nul")]) == 2


def test_an_error_of_any_size_ends_as_an_ordinary_failure(site):
    """M-025, M-428: tried again like any other, and told in words that fit a message and a row."""
    run = site.enqueue("shouting")
    result = run.result(timeout=60)
    assert [each.attempt for each in site.executions(run.id)] == [1, 2]
    assert result.run_status == "failed"
    assert result.step_history[0].feedback.startswith("Agent execution failed with ValueError: nul")
    assert len(result.step_history[0].feedback) < 100_000


def test_a_story_is_told_as_it_happens_and_gone_on_with_where_it_was_cut(site):
    """SYS-21, C-35: in order, each event once; who follows sees a step before the next one has ended."""
    run = site.enqueue("gated")
    story = run.follow()
    seen = [next(story), next(story)]
    assert [(event.name, event.data.get("step")) for event in seen] == [
        ("run.enqueued", None),
        ("step.succeeded", "before"),
    ]
    assert run.status() == "running"
    story.close()
    site.open_gate(run.id)
    rest = list(run.follow(after=seen[-1].cursor))
    assert [event.name for event in rest] == ["step.succeeded", "step.succeeded", "run.succeeded"]
    assert [event.id for event in run.events()] == [event.id for event in seen + rest]
    assert run.events(after=rest[-1].cursor) == list(run.follow(after=rest[-1].cursor)) == []


def test_a_story_can_be_awaited(site):
    async def follow():
        async with AsyncFlujoClient(site.settings) as client:
            run = await client.enqueue("acceptance_pipelines:three", [], context=Visits())
            return [event async for event in run.follow()], await run.events()

    told, all_of_it = asyncio.run(follow())
    assert told == all_of_it
    assert (told[0].name, told[-1].name) == ("run.enqueued", "run.succeeded")


def test_a_worker_tells_of_itself(site):
    """SYS-21: outside runs, with its name."""
    started = wait_until(lambda: [each for each in site.client.system_events() if each.name == "worker.started"])
    assert started[-1].data["worker"] in (site.folder / "workers.log").read_text(errors="replace")


@pytest.mark.parametrize("name", ["leaving", "leaving_in_thread", "leaving_in_task", "giving_up", "cancelling_itself"])
def test_an_agent_that_quits_fails_its_own_step_alone(site, name):
    """M-025, law of design §5: sys.exit in an agent, or its own cancellation, neither ends the worker nor leaves the run hanging."""
    beside = site.enqueue("gated")
    site.wait_for_execution(beside.id, "gate")
    run = site.enqueue(name)
    result = run.result(timeout=60)
    assert (result.run_status, result.error.category) == ("failed", "agent")
    site.open_gate(beside.id)
    assert_merged_once(site, beside, ["before", "gate", "after"])
    assert len(site.executions(beside.id)) == 3


def test_a_step_that_blocks_the_event_loop_does_not_cost_the_lease(site):
    """Law of design §5: the lease is renewed from a separate thread."""
    run = site.enqueue("hogging")
    assert_merged_once(site, run, ["hog", "after"])
    assert len(site.executions(run.id)) == 2


@one_process
def test_two_worker_processes_give_what_one_gives(site):
    """M-011: the same results and histories, whoever carries the steps; workers may be added while runs are under way."""
    alone = [ending(site.enqueue(name)) for name in ("three", "stubborn", "lingering")]
    site.workers(1)
    together = [site.enqueue(name) for name in ("three", "stubborn", "lingering") * 4]
    assert [ending(run) for run in together] == alone * 4
    assert len({each.pid for run in together for each in site.executions(run.id)}) == 2


def test_a_worker_told_to_stop_finishes_what_it_holds(site):
    """M-011: a warm stop loses nothing and repeats nothing; the step under way is merged before the process ends."""
    fleet = site.workers(1, arguments=("--queues", "leaving"))
    run = site.enqueue("gated", queue="leaving")
    begun = site.wait_for_execution(run.id, "gate")
    leaving = fleet.processes[0]
    leaving.terminate()
    wait_until(lambda: site.rows(STOPPING), what=site.log)
    site.open_gate(run.id)
    assert leaving.wait(timeout=60) == 0
    assert leaving.pid not in site.live_pids()
    site.workers(1, arguments=("--queues", "leaving"))
    assert_merged_once(site, run, ["before", "gate", "after"])
    assert site.executions(run.id, "gate") == [begun]


def ending(run):
    """What a run gave, without names of its own and times."""
    result = run.result(timeout=60)
    history = [step.model_dump(exclude={"latency_s"}) for step in result.step_history]
    return result.run_status, result.unchecked().output, result.final_pipeline_context, history
