"""Durable agents in workers: a crash pays for what was in flight, an outage for the call that failed."""

import json
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner

from flujo_client import UsageLimits
from flujo_client.cli.main import cli
from flujo_client.contract.run_filter import RunFilter
from flujo_client.errors import WaitTimedOut
from flujo_client.gateway.operator_requests import stats
from flujo_client.gateway.requests import workers
from tests.support.breadth import large
from tests.support.fleet import BRISK, Site, one_process, wait_until

pytestmark = [pytest.mark.acceptance, one_process]

UNITS = Counter(model=12, tool=6 * 5 + 5)
PLACES = {turn * 100 + place for turn in range(1, 12) for place in range(5 if turn % 2 else 1)}
SPENT = (sum(range(101, 113)), 120, 12)


@pytest.fixture(scope="module")
def durable_site(services, tmp_path_factory):
    with Site(services, tmp_path_factory.mktemp("durable"), worker=BRISK | {"max_lost": 20}) as site:
        yield site


def calls(site, run):
    """Count each real call of a run."""
    lines = (site.folder / f"calls-{run.id}").read_text().splitlines()
    return Counter(" ".join(line.split()[:-1]) for line in lines)


def spent(site, run):
    [row] = site.rows(
        "SELECT sum(input_tokens)::int AS i, sum(output_tokens)::int AS o, sum(requests)::int AS n FROM flujo_spends WHERE run_id = %(run)s",
        run=run.id,
    )
    return row["i"], row["o"], row["n"]


def performed(site, prompt, pipeline="research"):
    """Perform the agent with this input; return its run and result."""
    fleet = site.workers(2)
    run = site.client.enqueue(f"durable_pipelines:{pipeline}", prompt)
    wait_until(lambda: fleet.replace_dead() * 0 or run.status() not in ("queued", "running"), 60, what=site.log)
    result = run.result(timeout=5)
    site.dismiss()
    assert result.run_status == "succeeded", result.error
    return run, result


@pytest.mark.parametrize(
    ("disturbance", "in_flight"),
    [
        ("kill:model:7:during", {"model": 1, "tool": 0}),
        ("kill:tool:9:unit_answered", {"model": 0, "tool": 5}),
        large("kill:model:11:unit_settled", {"model": 0, "tool": 1}),
    ],
)
def test_a_killed_agent_goes_on_at_the_calls_in_flight(durable_site, disturbance, in_flight):
    run, result = performed(durable_site, disturbance)
    counted = calls(durable_site, run)
    again = Counter()
    for call, times in counted.items():
        again[call.split()[0]] += times - 1
    assert len(counted) == sum(UNITS.values())
    assert sum(again.values()) <= max(in_flight.values()), again
    assert set(result.final_pipeline_context.places) == PLACES
    assert len(result.final_pipeline_context.places) == len(PLACES)
    assert spent(durable_site, run) == SPENT


def test_an_outage_at_the_eleventh_request_costs_one_call(durable_site):
    run, result = performed(durable_site, "down:11")
    assert sum(calls(durable_site, run).values()) == sum(UNITS.values()) + 1
    assert len(result.final_pipeline_context.places) == len(PLACES)
    assert spent(durable_site, run) == SPENT
    assert [each["number"] for each in durable_site.attempts(run.id)] == [1, 2]


def test_a_warm_stop_hands_it_back_at_the_next_call_and_pays_nothing_again(durable_site):
    """Not after the end of the step, and not after the grace time of a minute."""
    leaving = durable_site.workers()
    run = durable_site.client.enqueue("durable_pipelines:research", "linger:6")
    wait_until(lambda: calls_of(durable_site, run)["model 6"], what=durable_site.log)
    [stopping] = leaving.processes
    stopping.terminate()
    wait_until(lambda: any(each.is_stopping for each in durable_site.client.ask(workers())), what=durable_site.log)
    (durable_site.folder / f"go-on-{run.id}").touch()
    assert stopping.wait(timeout=40) == 0
    assert run.status() == "running"
    durable_site.workers()
    result = run.result(timeout=120)
    durable_site.dismiss()
    assert result.run_status == "succeeded", result.error
    assert set(calls(durable_site, run).values()) == {1}
    assert spent(durable_site, run) == SPENT
    [attempt] = durable_site.attempts(run.id)
    assert (attempt["number"], attempt["losses"]) == (1, 0)
    assert attempt["fence"] >= 2  # it may have claimed it once more before its consumer stopped


@pytest.mark.parametrize("limits", [None, UsageLimits(total_tokens_limit=100_000)])
def test_what_was_in_flight_at_a_kill_is_listed_as_possibly_paid(durable_site, limits):
    """What is paid and possibly paid is what the model has counted: whoever has asked, and whatever becomes of the run."""
    fleet = durable_site.workers()
    run = durable_site.client.enqueue("durable_pipelines:research", "linger:6", limits=limits)
    unsettled = "SELECT 1 FROM flujo_units WHERE run_id = %(run)s AND settled_at IS NULL AND effect IS NULL"
    wait_until(lambda: calls_of(durable_site, run)["model 6"], what=durable_site.log)
    wait_until(lambda: durable_site.rows(unsettled, run=run.id), what=durable_site.log)
    fleet.kill()
    if limits is not None:  # it ends while nobody works on it
        with suppress(WaitTimedOut):
            run.cancel(timeout=0.1)
    durable_site.workers()
    (durable_site.folder / f"go-on-{run.id}").touch()
    wait_until(lambda: run.status() in ("succeeded", "cancelled"), what=durable_site.log)
    durable_site.dismiss()
    told = spend_told(durable_site, run)
    asked = sum(times for call, times in calls(durable_site, run).items() if call.startswith("model"))
    assert told["possibly paid"]["requests"] == 1
    assert (asked, told["paid"]["requests"]) == ((13, 12) if limits is None else (6, 5))
    assert told["paid"]["requests"] + told["possibly paid"]["requests"] == asked
    assert {each["model"] for each in told["steps"]} == {"function:function:scripted:"}
    assert told["paid"]["tokens"] == sum(spent(durable_site, run)[:2])
    if limits is not None:
        [budget] = run.budgets()
        assert (budget.spent_tokens, budget.reserved_tokens) == (told["paid"]["tokens"], 0)


def spend_told(site, run):
    assert "possibly paid" in flujo(site, "lens", "spend", run.id)
    return json.loads(flujo(site, "lens", "spend", run.id, "--json"))


def flujo(site, *arguments):
    told = CliRunner().invoke(cli, arguments, env=site.settings.as_environment())
    assert told.exit_code == 0, told.output
    return told.stdout


def test_a_provider_s_usage_is_compared_with_what_is_on_record(durable_site, tmp_path):
    performed(durable_site, "once more")
    day = f"{datetime.now(UTC):%Y-%m-%d}"
    [ours] = durable_site.rows("SELECT sum(requests)::int AS n, sum(input_tokens)::int AS i FROM flujo_spends")
    bill = tmp_path / "bill.csv"
    bill.write_text(f"day,model,requests,input_tokens\n{day},function:function:scripted:,{ours['n'] + 1},{ours['i']}\n")
    assert "difference" in flujo(durable_site, "spend", "import", str(bill))
    found = json.loads(flujo(durable_site, "spend", "import", str(bill), "--json"))
    [compared] = [each for each in found if each["day"] == day]
    assert (compared["model"], compared["ours"]["requests"]) == ("function:scripted:", ours["n"])
    assert (compared["difference"]["requests"], compared["difference"]["input_tokens"]) == (-1, 0)


def calls_of(site, run):
    return calls(site, run) if (site.folder / f"calls-{run.id}").exists() else Counter()


@pytest.mark.parametrize("disturbance", ["kill:tool:9:unit_answered", large("down:11")])
def test_spans_and_events_of_calls_come_once(durable_site, disturbance):
    """The spans of calls under way at the kill are lost with it; no call has two."""
    run, _ = performed(durable_site, disturbance, "traced")
    counted = calls(durable_site, run)
    models, tools = (sum(n for call, n in counted.items() if call.startswith(kind)) for kind in ("model", "tool"))
    killed = disturbance.startswith("kill")
    assert 12 <= counted["span chat"] <= models
    assert 35 - killed * 5 <= counted["span execute_tool"] <= tools
    told = Counter(each["name"] for each in durable_site.events(run.id, "agent.request", "agent.tool"))
    assert told == {"agent.request": 12, "agent.tool": 35}


def test_a_long_wait_holds_no_slot_and_survives_the_worker(services, tmp_path_factory):
    """One slot: another run uses it while the provider works. Then the worker dies, and no call is made again."""
    one_slot = BRISK | {"concurrency": 1}
    with Site(services, tmp_path_factory.mktemp("waits"), worker=one_slot) as site:
        fleet = site.workers(1)
        run = site.client.enqueue("durable_pipelines:job", "go")
        wait_until(lambda: any(each["reason"] == "waiting" for each in site.attempts(run.id)), 60, what=site.log)
        other = site.client.enqueue("durable_pipelines:quick", "bees")
        assert other.result(timeout=120).output == "BEES"
        assert calls(site, run) == {"model 1": 1, "tool fetch": 1, "model 2": 1}
        fleet.kill()
        site.workers(1)
        assert run.result(timeout=120).output == "done"
        assert calls(site, run) == {"model 1": 1, "tool fetch": 1, "model 2": 1, "model 3": 1}
        assert [(each["number"], each["status"]) for each in site.attempts(run.id)] == [(1, "failed"), (2, "succeeded")]
        assert site.client.ask(stats(RunFilter(), timeout_s=5)).failing == ()  # to wait is no failure
