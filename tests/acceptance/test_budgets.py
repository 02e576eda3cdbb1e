"""Budgets over real processes: admitted, refused, and counted to the last token, whichever process dies (SYS-18)."""

import time
from statistics import median

import budget_pipelines
import pytest

from flujo_client import UsageLimitExceededError, UsageLimits
from flujo_client.config.models import Cost
from flujo_worker.agents.pricing import AskedModel, price_of
from tests.support.fleet import STEADY, Site, wait_until

pytestmark = pytest.mark.acceptance

WATCHED = """
CREATE TABLE IF NOT EXISTS watched (scope text, usd numeric, tokens bigint, overrun_usd numeric, overrun_tokens bigint);
CREATE OR REPLACE FUNCTION watch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO watched VALUES (new.scope, new.settled_usd + new.reserved_usd, new.settled_tokens + new.reserved_tokens,
                                new.overrun_usd, new.overrun_tokens);
    RETURN new;
END $$;
CREATE OR REPLACE TRIGGER watch AFTER INSERT OR UPDATE ON flujo_budgets FOR EACH ROW EXECUTE FUNCTION watch();
"""
"""Every version of every budget that was ever committed."""


def enqueue(site, name, **limits):
    options = {"limits": UsageLimits(**limits)} if limits else {}
    return site.client.enqueue(f"budget_pipelines:{name}", "in", **options)


def budget(site, scope):
    return site.rows("SELECT * FROM flujo_budgets WHERE scope = %(scope)s", scope=scope)[0]


def assert_settled(site, scope, *, tokens, overrun=0):
    row = budget(site, scope)
    assert (row["settled_tokens"], row["reserved_tokens"], row["overrun_tokens"]) == (tokens, 0, overrun)
    assert row["reserved_usd"] == 0


def test_a_doubled_message_reserves_once(site):
    """M-013: the same message twice is one attempt, one reservation, one settlement. No one is at work before it is doubled."""
    site.dismiss()
    run = enqueue(site, "three", total_tokens_limit=30)
    for queue in site.redis.scan_iter("flujo.attempts*"):
        site.redis.lpush(queue, *site.redis.lrange(queue, 0, -1))
    site.standing(2)
    assert run.result(120).run_status == "succeeded"
    assert_settled(site, f"run:{run.id}", tokens=30)


def ended_as(site, run):
    """How many of a run's tries ended in which way."""
    rows = site.rows(
        "SELECT status, reason, count(*) AS tries FROM flujo_attempts"
        " WHERE run_id = %(run)s AND kind = 'step' GROUP BY status, reason",
        run=run.id,
    )
    return {(row["status"], row["reason"]): row["tries"] for row in rows}


def assert_never_passed(site, scope, *, usd, tokens):
    """Of every version that the trigger saw: what was settled and reserved reached the limit, and nothing went beyond it."""
    [most] = site.rows(
        "SELECT max(usd) AS usd, max(tokens) AS tokens, sum(overrun_usd + overrun_tokens) AS beyond, count(*) AS versions"
        " FROM watched WHERE scope = %(scope)s",
        scope=scope,
    )
    assert (float(most["usd"]), most["tokens"], most["beyond"]) == (usd, tokens, 0)
    assert most["versions"] >= 3, "opened, reserved, settled; groups do for many at once"


def test_a_run_is_admitted_until_its_limit_and_refused_beyond(site):
    """M-044, M-430: the call that does not fit is never made; what was done is in the partial result."""
    site.standing()
    run = enqueue(site, "three", total_tokens_limit=25)
    result = run.result(120)
    assert [each.step for each in site.executions(run.id)] == ["first", "second"]
    assert [(each.name, each.success, each.token_counts) for each in result.step_history] == [
        ("first", True, 10),
        ("second", True, 10),
        ("third", False, 0),
    ]
    assert (result.total_tokens, result.error.category) == (20, "limit")
    with pytest.raises(UsageLimitExceededError, match="Token limit of 25 exceeded") as raised:
        result.raise_for_status()
    assert raised.value.result.step_history == result.step_history
    assert_settled(site, f"run:{run.id}", tokens=20)


def test_a_run_within_its_limits_succeeds(site):
    """Requirements §2.9: and its trace tells what each attempt found, asked for and cost."""
    site.standing()
    run = enqueue(site, "three", total_tokens_limit=30, total_cost_usd_limit=0.3)
    assert run.result(120).run_status == "succeeded"
    assert_settled(site, f"run:{run.id}", tokens=30)
    [told] = run.budgets()
    assert (told.scope, told.limit_tokens, told.spent_tokens, told.spent_usd) == (f"run:{run.id}", 30, 30, 0.3)
    trace = run.trace()
    assert trace.attributes["flujo.budget.initial_cost_usd"] == 0.3
    last = trace.children[-1].children[0].attributes
    figures = ("quota_before_usd", "quota_before_tokens", "estimate_tokens", "actual_cost_usd", "actual_tokens")
    assert [last[f"flujo.budget.{name}"] for name in figures] == [0.1, 10, 10, 0.1, 10]


@pytest.mark.parametrize("limit", [15, 25])
def test_what_no_one_expected_fails_the_run_with_the_breaking_step_in_its_history(site, limit):
    """M-430, M-431, C-10: a step of unknown cost is admitted; passing the limit, it is merged and the run has failed."""
    site.standing()
    run = enqueue(site, "surprising", total_tokens_limit=limit)
    result = run.result(120)
    spent = limit + 5
    with pytest.raises(UsageLimitExceededError, match=f"Token limit of {limit} exceeded. Current tokens: {spent}"):
        result.raise_for_status()
    assert (result.run_status, result.total_tokens) == ("failed", spent)
    assert [each.token_counts for each in result.step_history][: spent // 10] == [10] * (spent // 10)
    assert_settled(site, f"run:{run.id}", tokens=limit, overrun=5)
    assert [event["data"]["actual_value"] for event in site.events(run.id, "flujo.budget.violation")] == [spent]


def seconds_to_cancel(site):
    """Let a step pass its run's limit; give the time until its running sibling was cancelled. What waits never begins."""
    run = enqueue(site, "siblings", total_tokens_limit=5)
    for step in ("waits", "again", "gate"):
        site.wait_for_execution(run.id, step)
    begun = site.executions(run.id)
    wait_until(lambda: ended_as(site, run).get(("failed", "error")), what=site.log)
    site.open_gate(run.id)
    [violation] = wait_until(lambda: site.events(run.id, "flujo.budget.violation"), what=site.log)
    wait_until((site.folder / f"cancelled-{run.id}").exists, what=site.log)
    took = (site.folder / f"cancelled-{run.id}").stat().st_mtime - violation["at"].timestamp()
    assert run.result(120).error.type_name == "UsageLimitExceededError"
    later = site.workers(arguments=("--queues", "later"))
    wait_until(lambda: not site.stuck() and not site.redis.llen("later"), what=site.log)
    later.kill()
    assert sorted(each.step for each in begun) == ["again", "gate", "waits"]
    assert site.executions(run.id) == begun
    return took


def test_running_siblings_are_told_within_a_second_and_nothing_more_begins(services, tmp_path):
    """M-433: long before a lease is renewed; neither a branch that is queued nor one that waits to be tried again begins.

    Two of three tries have to be in time: a machine that does other things, too, may come late once.
    """
    with Site(services, tmp_path, worker={"lease_s": 60, "renew_s": 30}) as site:
        site.workers(2)
        tries = [seconds_to_cancel(site) for _ in range(3)]
        assert median(tries) < 1, tries
        site.dismiss()


@pytest.mark.parametrize("name", ["openai", "anthropic", "google"])
def test_branches_whose_steps_say_nothing_of_cost_pass_a_limit_by_one_attempt_at_most(site, name):
    """M-044, M-435: twenty race for what three can spend; the price of their model and `max_tokens` are all that is known."""
    site.standing(2)
    model = getattr(budget_pipelines, name).steps[0].branches["b0"].agent.model
    prompt = "x" * 3000
    attempt = price_of(AskedModel(*model.split(":")), len(prompt) // 4, 400, Cost())
    run = site.client.enqueue(
        f"budget_pipelines:{name}", prompt, limits=UsageLimits(total_cost_usd_limit=attempt * 3.6)
    )
    tries = "SELECT count(*) AS tries FROM flujo_attempts WHERE run_id = %(run)s AND reason = 'limit'"
    wait_until(lambda: site.rows(tries, run=run.id)[0]["tries"] + len(site.executions(run.id)) == 20, what=site.log)
    site.open_gate(run.id)
    result = run.result(60)
    assert 1 <= len(site.executions(run.id)) <= 3
    assert 0 < result.total_cost_usd <= attempt * 3.6
    row = budget(site, f"run:{run.id}")
    assert (row["overrun_usd"], row["reserved_usd"]) == (0, 0)


@pytest.mark.parametrize(("name", "width", "fit"), [("twenty", 20, 5), ("two_hundred", 200, 100)])
def test_branches_that_race_never_have_more_than_the_limit(site, name, width, fit):
    """M-435: on two workers, at no commit is the limit passed; what fits is done, the rest is refused as limit, and none is lost."""
    with site.connection() as connection:
        connection.execute(WATCHED)
    site.standing(2)
    run = enqueue(site, name, total_cost_usd_limit=fit / 10, total_tokens_limit=fit * 10)
    result = run.result(120)
    assert len(site.executions(run.id)) == fit
    assert (result.run_status, result.total_tokens) == ("succeeded", fit * 10)
    [race] = result.step_history
    assert (len(race.step_history), len({branch.name for branch in race.step_history})) == (width, width)
    refused = [branch for branch in race.step_history if not branch.success]
    assert len(refused) == width - fit
    assert all("Insufficient quota" in branch.feedback for branch in refused)
    assert ended_as(site, run) == {("succeeded", None): fit, ("failed", "limit"): width - fit}
    assert_never_passed(site, f"run:{run.id}", usd=fit / 10, tokens=fit * 10)
    assert_settled(site, f"run:{run.id}", tokens=fit * 10)


def test_child_runs_share_the_budget_of_the_first_run(site):
    """M-435, U-12, U-14: one budget for the tree; the child's call that does not fit is refused."""
    site.standing()
    run = enqueue(site, "child", total_tokens_limit=20)
    result = run.result(120)
    assert (result.run_status, result.total_tokens, result.error.category) == ("failed", 20, "limit")
    assert_settled(site, f"run:{run.id}", tokens=20)
    assert [
        row["scope"] for row in site.rows("SELECT scope FROM flujo_budgets WHERE scope LIKE %(s)s", s=f"%{run.id}%")
    ] == [f"run:{run.id}"]


def test_a_step_has_limits_of_its_own(site):
    """Requirements §2.1: without any limit of the run's."""
    site.standing()
    run = enqueue(site, "own_limits")
    assert "Token limit of 9 exceeded" in run.result(120).error.message
    assert [each.step for each in site.executions(run.id)] == ["free"]


@pytest.mark.parametrize("failpoint", ["after_claim", "before_commit", "answer_lost", "before_publish"])
def test_a_worker_that_dies_anywhere_settles_each_attempt_once(site, tmp_path, failpoint):
    """Law 7 across the failpoints: all three steps of every run are admitted, and thirty tokens are settled."""
    site.standing()
    armed = site.workers(failpoints=f"{failpoint}:kill:{tmp_path / failpoint}")
    runs = []
    while not (tmp_path / failpoint).exists():
        assert len(runs) < 100, site.log()
        runs.append(enqueue(site, "three", total_tokens_limit=30))
        runs[-1].result(120)
    wait_until(lambda: not armed.pids, what=site.log)
    assert {run.result(120).run_status for run in runs} == {"succeeded"}, site.log()
    for run in runs:
        assert_settled(site, f"run:{run.id}", tokens=30)


def test_a_worker_killed_between_claim_and_outcome_loses_and_doubles_nothing(site):
    """M-013, M-435: its reservation stays, the redelivery continues with it, and settles it once."""
    site.dismiss()
    fleet = site.workers()
    run = enqueue(site, "gated", total_tokens_limit=10)
    site.wait_for_execution(run.id, "gate")
    fleet.kill()
    assert budget(site, f"run:{run.id}")["reserved_tokens"] == 10
    site.standing()
    site.wait_for_execution(run.id, "gate", times=2)
    site.open_gate(run.id)
    assert (run.result(120).run_status, run.result().total_tokens) == ("succeeded", 10)
    assert_settled(site, f"run:{run.id}", tokens=10)


def test_a_tenant_has_a_budget_for_its_day(services, tmp_path):
    """Requirements §2.7: `[budgets.tenant]`, shared by the runs of one tenant and of no other."""
    budgets = {"tenant": {"acme": {"total_tokens_limit": 40}}}
    with Site(services, tmp_path, worker=STEADY, budgets=budgets) as site:
        site.workers()
        tenants = ("acme", "acme", "other")
        results = [site.client.enqueue("budget_pipelines:three", "in", tenant=name).result(120) for name in tenants]
        assert [(each.run_status, each.total_tokens) for each in results] == [
            ("succeeded", 30),
            ("failed", 10),
            ("succeeded", 30),
        ]
        [row] = site.rows("SELECT * FROM flujo_budgets")
        assert (row["settled_tokens"], row["reserved_tokens"]) == (40, 0)
        assert row["scope"] == f"tenant:acme:{time.strftime('%Y-%m-%d', time.gmtime())}"
