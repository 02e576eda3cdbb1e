"""The result cache in real processes: kept by one worker, taken by another; distrusted, forgotten, and passed by (SYS-31, U-19)."""

from collections import Counter
from typing import Any

import pytest

from flujo_client import PipelineResult, RunHandle
from tests.support.fleet import PATIENCE_S, Site, wait_until

KEYS = {"now": "a signing key of some length"}
pytestmark = [pytest.mark.acceptance, pytest.mark.site(signing_keys=KEYS)]


@pytest.fixture(scope="module", autouse=True)
def fleet(site):
    return site.workers(2)


@pytest.fixture(autouse=True)
def nothing_kept(site):
    forget(site)


def enqueue(site: Site, name: str, value: Any, **context: Any) -> RunHandle:
    return site.client.enqueue(f"cache_pipelines:{name}", value, context=context)


def ended(site: Site, run: RunHandle) -> PipelineResult:
    """Its result; what it had kept is kept by then, for it is written before the run's last step is merged."""
    result = run.result(timeout=PATIENCE_S)
    assert result.run_status == "succeeded", (result.error, site.log())
    return result


def starts(site: Site, *runs: str) -> Counter[str]:
    return Counter(each.step for run in runs for each in site.executions(run))


def kept(site: Site) -> dict[bytes, bytes]:
    return {key: site.redis.get(key) for key in site.redis.keys("flujo:cache:*") if not key.endswith(b":flight")}


def forget(site: Site) -> None:
    for key in site.redis.keys("flujo:cache:*"):
        site.redis.delete(key)


def cache_told(site: Site, run: RunHandle) -> list[str]:
    names = ["hit", "miss", "waiting", "stored", "not_stored"]
    return [each["name"].rpartition(".")[2] for each in site.events(run.id, *(f"flujo.cache.{name}" for name in names))]


def test_what_one_worker_kept_another_takes(site, fleet):
    """SYS-31, U-19: the agent is not called, and the context update comes back, in another process and another context."""
    first = enqueue(site, "writing", "bees")
    expected = ended(site, first)
    fleet.kill()
    site.workers(2)
    second = enqueue(site, "writing", "bees", read=40, seen=["wasps"])
    result = ended(site, second)
    assert (starts(site, first.id), starts(site, second.id)) == (Counter(["write", "after"]), Counter(["after"]))
    processes = [{each.pid for each in site.executions(run.id)} for run in (first, second)]
    assert processes[0].isdisjoint(processes[1])
    context = result.final_pipeline_context
    assert (result.output, context.topic, context.summary) == (expected.output, "about bees", {"topic": "about bees"})
    assert (context.read, context.seen) == (41, ["wasps", "bees"])
    assert (result.step_history[0].metadata_, result.step_history[0].attempts) == ({"cache_hit": True}, 0)
    assert [cache_told(site, each) for each in (first, second)] == [["miss", "stored"], ["hit"]]


def test_what_redis_lost_is_made_again(site):
    """A cache is not a memory: without its keys the step is run, and kept again."""
    runs = []
    for forgets in (False, True, False):
        if forgets:
            forget(site)
        runs.append(enqueue(site, "writing", "lost"))
        ended(site, runs[-1])
    assert starts(site, *(run.id for run in runs)) == Counter({"write": 2, "after": 3})
    assert cache_told(site, runs[1]) == ["miss", "stored"]


def test_equal_runs_at_the_same_time_call_the_agent_once(site):
    """U-19: on two workers; the others wait without occupying them, and take the result."""
    runs = [enqueue(site, "slow", "x") for _ in range(4)]
    wait_until(lambda: sum("waiting" in cache_told(site, each) for each in runs) == 3, what=site.log)
    other = enqueue(site, "writing", "meanwhile")
    ended(site, other)
    (site.folder / "seen").touch()
    assert [ended(site, each).output for each in runs] == ["done x"] * 4
    assert starts(site, *(each.id for each in runs)) == Counter({"slow": 1})
    assert len(kept(site)) == 2  # no lease is left behind


def test_a_failure_is_never_kept(site):
    """SYS-31: only successes."""
    failed = enqueue(site, "failing", "x")
    assert failed.result(timeout=PATIENCE_S).run_status == "failed"
    assert kept(site) == {}
    (site.folder / "repaired").touch()
    runs = [enqueue(site, "failing", "x")]
    assert ended(site, runs[0]).output == "done x"
    wait_until(lambda: kept(site), what=site.log)  # written after the commit that ended the run
    runs.append(enqueue(site, "failing", "x"))
    assert ended(site, runs[1]).output == "done x"
    assert [starts(site, run.id)["shaky"] for run in (failed, *runs)] == [1, 1, 0]


def test_hits_wherever_a_step_may_stand_but_in_a_loop(site):
    """SYS-31: in a branch, a map, a nested pipeline and a child run; not inside iterations, but a loop as a whole."""
    first = enqueue(site, "everywhere", "in")
    expected = ended(site, first)
    wait_until(lambda: len(kept(site)) == 7, what=site.log)
    second = enqueue(site, "everywhere", "in")
    result = ended(site, second)
    assert result.output == expected.output
    runs = [each.id for run in (first, second) for each in (run, *run.children())]
    once = dict.fromkeys(["plain", "branch", "inner", "child"], 1) | {"item": 2, "round": 2}
    assert starts(site, *runs) == Counter(once | {"uncached": 2, "turn": 4})
    assert cache_told(site, second) == ["hit"] * 6
    assert [each.metadata_.get("cache_hit") for each in result.step_history] == [True] + [None] * 5 + [True]


def test_no_one_plants_results_in_redis(site):
    """M-014: a value that was signed for another input, or not at all, is deleted, and the step is run."""
    for value in ("right", "wrong"):
        ended(site, enqueue(site, "writing", value))
    (right, _), (wrong, other) = sorted(kept(site).items(), key=lambda each: b"about wrong" in each[1])
    site.redis.set(right, other)
    site.redis.set(wrong, other.partition(b"\n")[2].replace(b"about wrong", b"about forged"))
    runs = [enqueue(site, "writing", value) for value in ("right", "wrong")]
    assert [ended(site, run).final_pipeline_context.topic for run in runs] == ["about right", "about wrong"]
    assert [cache_told(site, run) for run in runs] == [["miss", "stored"]] * 2
