"""Postgres stopped as in a crash while hundreds of runs are under way: nothing is lost, merged twice, stuck or spent unrecorded."""

import random
from collections import Counter, defaultdict

import psycopg
import pytest
from paid_pipelines import CALLS

from flujo_client.contract.limits import UsageLimits
from tests.support.fleet import PATIENCE_S, STEADY, Site, own_pool, wait_until, whole_lines

pytestmark = pytest.mark.acceptance

LIMITS = UsageLimits(total_tokens_limit=10**12)
"""No run comes near it: all that it does is to have every call reserved and settled."""

ORDERS = (("row", {}), ("fan", {}), ("rounds", {}), ("row", {"limits": LIMITS}))
MERGES = """
SELECT run_id, count(*) AS merges, count(DISTINCT (address, step)) AS steps FROM flujo_attempts
WHERE kind = 'step' AND status = 'succeeded' GROUP BY run_id
"""
SPENT = "SELECT run_id, input_tokens FROM flujo_spends WHERE input_tokens > 0"
SETTLED = "SELECT scope, settled_tokens FROM flujo_budgets"
SELDOM = {**STEADY, "renew_s": 15.0, "sweep_s": 3.0}
"""Each lease that is renewed, and each sweep, writes the claims before it to the disk."""


@pytest.fixture(scope="module")
def services(services_to_break):
    """Return services that no other test process uses: they are crashed here."""
    return services_to_break


def test_runs_outlive_crashes_of_postgres(site):
    """M-001, M-013, design §5: each call that was made is on record, and each step is merged once."""
    crash_under_load(site, seed=0, runs=80, crashes=2)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(1, 21))
def test_hundreds_of_runs_outlive_crashes_of_postgres(site, seed):
    """The same, longer."""
    crash_under_load(site, seed=seed, runs=400, crashes=3)


@own_pool  # others wait until a claim is on disk
@pytest.mark.large
def test_executions_of_claims_that_a_crash_lost_have_ids_of_their_own(services, tmp_path):
    """M-013: the effects of two executions under one fence are told apart, and the record names the one that was merged."""
    with Site(services, tmp_path, worker=SELDOM) as site:
        site.workers(2)
        flush_claims_late(site)
        lose_claims(site)


def lose_claims(site):
    """Crash Postgres until a claim that had had an effect is lost."""
    shared = crashes = 0
    while not shared and crashes < 16:
        before = len(effects(site))
        runs = site.client.enqueue_many("claim_pipelines:acting", [None] * 20)
        wait_until(lambda before=before: len(effects(site)) >= before + 12, what=site.log)
        site.services.restart_postgres("immediate")
        crashes += 1
        merged = {run.id: run.result(timeout=PATIENCE_S).output for run in runs}
        acted = [(key, claim) for key, claim in effects(site) if key.split(":")[0] in merged]
        shared = assert_told_apart(site, runs, merged, acted)
    print(f"{crashes} crashes: {shared} attempts had two executions under one fence")
    assert shared, "no crash lost a claim that had had an effect"


def flush_claims_late(site):
    """Let claims, which do not wait for the disk, be written as late as Postgres allows."""
    with psycopg.connect(site.services.database_url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
        connection.execute("ALTER SYSTEM SET wal_writer_flush_after = '1GB'")
        connection.execute("SELECT pg_reload_conf()")


def effects(site):
    return [tuple(line.split()) for line in whole_lines(site.folder / "effects")]


def assert_told_apart(site, runs, merged, acted):
    """No two effects have one id; return how many attempts were executed more often than their fence counts."""
    assert len({claim for _, claim in acted}) == len(acted)
    executed, shared = defaultdict(list), 0
    for key, claim in acted:
        executed[key].append(claim)
    for run in runs:
        [attempt] = [node for node in nodes(run.trace()) if node.kind == "attempt"]
        facts = attempt.attributes
        assert facts["claim_id"] == merged[run.id]
        assert facts["claim_id"] in executed[facts["key"]]
        shared += len(executed[facts["key"]]) > facts.get("deliveries", 1)
    return shared


def nodes(root):
    return [root, *(each for child in root.children for each in nodes(child))]


def crash_under_load(site, *, seed, runs, crashes):
    """Crash Postgres at random moments between the first call and the last, and compare what tells of the calls."""
    site.standing(2)
    before = len(executions(site))
    orders = [
        (shape, run)
        for shape, options in ORDERS
        for run in site.client.enqueue_many(
            f"paid_pipelines:{shape}", ["in"] * (runs // len(ORDERS)), context={}, **options
        )
    ]
    calls = sum(CALLS[shape] for shape, _ in orders)
    draw = random.Random(seed)
    for moment in sorted(draw.uniform(0.0, 0.8) for _ in range(crashes)):
        wait_until(lambda moment=moment: len(executions(site)) - before >= moment * calls, what=site.log)
        site.services.restart_postgres("immediate")
    results = [(shape, run.id, run.result(timeout=PATIENCE_S)) for shape, run in orders]
    wait_until(lambda: not site.stuck(), 60, what=lambda: f"{site.stuck()}\n{site.log()}")
    made = executions(site)
    assert_merged_once(site, results, made)
    assert_spent(site, made)
    repeated = len(made) - before - calls
    print(f"seed {seed}: {crashes} crashes, {len(orders)} runs, {calls} calls merged, {repeated} more were made")


def executions(site):
    """The effects themselves: the run and the amount of each call that was made, from a file that no server keeps."""
    return [(run, int(amount)) for run, amount in map(str.split, whole_lines(site.folder / "ledger"))]


def assert_merged_once(site, results, made):
    """Each run succeeded, and each of its steps has put the amount of one of its calls into the context, once."""
    merged = [(run, amount) for _, run, result in results for amount in result.final_pipeline_context.amounts]
    assert Counter(merged) - Counter(made) == {}
    steps = {row["run_id"]: (row["merges"], row["steps"]) for row in site.rows(MERGES)}
    for shape, run, result in results:
        assert (result.run_status, len(result.final_pipeline_context.amounts)) == ("succeeded", CALLS[shape])
        assert steps[run] == (CALLS[shape], CALLS[shape])


def assert_spent(site, made):
    """What was recorded is what was called, to the last call; and budgets have settled as much."""
    assert Counter((row["run_id"], row["input_tokens"]) for row in site.rows(SPENT)) == Counter(made)
    spent = Counter()
    for run, amount in made:
        spent[f"run:{run}"] += amount
    settled = {row["scope"]: row["settled_tokens"] for row in site.rows(SETTLED)}
    assert settled
    assert settled == {scope: spent[scope] for scope in settled}
