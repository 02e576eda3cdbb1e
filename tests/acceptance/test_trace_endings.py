"""Whatever ends a run, its trace is one complete tree, for programs and for readers of SQL alike (SYS-20, M-290, M-292, M-169, U-40).

Every kind of ending at its own place, on one fleet of two workers; then each is looked at.
"""

import os
import re
import signal
from contextlib import closing
from pathlib import Path

import pytest
from turn_table import GENEROUS, limit

from flujo_client import UsageLimits
from flujo_client.contract.envelope import ATTEMPTS_QUEUE
from flujo_client.transport.broker import Broker
from flujo_worker.store.postgres.stores import PostgresStores
from tests.support.fleet import wait_until
from tests.support.trace_collector import TraceCollector, assert_exported

pytestmark = [pytest.mark.acceptance, pytest.mark.site(worker={"sweep_s": 0.3})]

TURNED = {
    "success": "fallback_in_branch",
    "redirect": "redirect_in_loop",
    "answer": "pause_in_router",
    "failure": "carousel_in_map",
    "abort": "abort_in_nested_branch",
    "limit": "limit_in_branch_loop",
    "child_run": "abort_in_child_run",
    "pause": "pause_in_child_run",
    "cancel": "cancel_in_branch",
}
"""What is shown by which pipeline of `turn_pipelines`."""
PAGE = (Path(__file__).parents[2] / "docs/reference/trace.md").read_text(encoding="utf-8")
DONE = "step:before[#1] step:gate[#1] step:after[#1]"
GOLDEN = {
    "success": "run:fallback_in_branch[step:before[#1] parallel:fan[branch:a[step:left[#1]] "
    "branch:b[step:draft[#1] fallback:shaky[body:primary!failed[step:shaky!failed[#1!failed]] body:fallback[step:rescue[#1]]]] "
    "branch:c[step:right[#1]]] step:after[#1]]",
    "redirect": "run:redirect_in_loop[step:before[#1] loop:loop[iteration:loop#1[step:draft[#1] step:junior[#1]] "
    "iteration:loop#2[step:draft[#1] step:junior[#1]]] step:after[#1]]",
    "answer": "run:pause_in_router[step:before[#1] router:route[#1 branch:a[step:beside[#1]] "
    "branch:b[step:draft[#1] step:ask[#1] step:heed[#1]]] step:after[#1]]",
    "failure": "run:carousel_in_map!failed[step:before[#1] map:map!failed[item:map#1!failed[step:draft[#1] "
    "step:junior!failed[#1!failed]] item:map#2!cancelled]]",
    "abort": "run:abort_in_nested_branch!failed[step:before[#1] parallel:outer!failed[branch:a[step:west[#1]] "
    "branch:b!failed[parallel:inner!failed[branch:a[step:left[#1]] branch:b!failed[step:draft[#1] step:halt!failed[#1!failed]] "
    "branch:c!cancelled[step:right!cancelled[#1!cancelled]]]] branch:c!cancelled[step:east!cancelled[#1!cancelled]]]]",
    "limit": "run:limit_in_branch_loop!failed[step:before[#1] parallel:fan!cancelled[branch:a[step:left[#1]] "
    "branch:b!cancelled[loop:loop!cancelled[iteration:loop#1!cancelled[step:draft[#1] step:dear[#1] "
    "step:polish!cancelled[#1!cancelled]]]] branch:c!cancelled[step:right!cancelled[#1!cancelled]]]]",
    "child_run": "run:abort_in_child_run!failed[step:before[#1] nested:import!failed]",
    "pause": "run:pause_in_child_run!paused[step:before[#1] nested:import!running]",
    "cancel": "run:cancel_in_branch!cancelled[step:before[#1] parallel:fan!cancelled[branch:a[step:left[#1]] "
    "branch:b!cancelled[step:draft[#1] step:wait!cancelled[#1!cancelled]] branch:c!cancelled[step:right!cancelled[#1!cancelled]]]]",
    "expiry": "run:gated!expired[step:before[#1] step:gate!cancelled[#1!cancelled]]",
    "redelivery": f"run:gated[{DONE}]",
    "lost_worker": f"run:gated[{DONE}]",
    "background": "run:dear[step:first[#1] background:later step:last[#1]]",
}


@pytest.fixture(scope="module")
def collector():
    with TraceCollector() as collector, pytest.MonkeyPatch.context() as patch:
        for name, value in collector.environment.items():
            patch.setenv(name, value)
        yield collector


@pytest.fixture(scope="module")
def runs(site, collector):
    """A run for each ending, each come to it."""
    site.standing(2)
    made = {ending: enqueued(site, pipeline) for ending, pipeline in TURNED.items()}
    made["expiry"] = site.enqueue("gated", deadline_s=600)
    made["redelivery"] = site.enqueue("gated")
    made["background"] = site.client.enqueue("background_pipelines:dear", [])
    wait_until(lambda: made["answer"].status() == "paused", what=site.log)
    made["answer"].resume("go")
    wait_until(lambda: site.executions(made["cancel"].id, "wait"), what=site.log)
    made["cancel"].cancel()
    let_expire(site, made["expiry"])
    deliver_again(site, made["redelivery"])
    wait_until(lambda: has_turned(made), what=lambda: f"{[(k, r.status()) for k, r in made.items()]} {site.log()}")
    made["lost_worker"] = site.enqueue("gated")
    os.kill(site.wait_for_execution(made["lost_worker"].id, "gate").pid, signal.SIGKILL)
    site.wait_for_execution(made["lost_worker"].id, "gate", times=2)
    site.open_gate(made["lost_worker"].id)
    made["lost_worker"].result(timeout=60)
    yield made
    site.dismiss()


def enqueued(site, pipeline):
    turn, _, place = pipeline.partition("_in_")
    most = limit(turn, place) if turn == "limit" else GENEROUS
    return site.client.enqueue(f"turn_pipelines:{pipeline}", "in", limits=UsageLimits(total_tokens_limit=most))


def has_turned(made):
    ended = [run.status() not in ("queued", "running", "paused") for name, run in made.items() if name != "pause"]
    return all(ended) and made["pause"].status() == "paused"


def let_expire(site, run):
    site.wait_for_execution(run.id, "gate")
    with site.connection() as connection:
        connection.execute("UPDATE flujo_runs SET deadline_at = now() WHERE id = %s", [run.id])


def deliver_again(site, run):
    """Twice more, while it runs."""
    key = f"{run.id}::gate:1"
    site.wait_for_execution(run.id, "gate")
    with closing(PostgresStores(site.settings.database()).open()) as stores, closing(Broker(site.settings)) as broker:
        broker.publish(stores.backlog.envelopes([key]) * 2)
        wait_until(lambda: not any(broker.depths([ATTEMPTS_QUEUE]).values()), what=site.log)
    site.open_gate(run.id)


@pytest.fixture(params=GOLDEN)
def ended(request, runs):
    """A run, and the tree it is to have."""
    return runs[request.param], GOLDEN[request.param]


def test_a_trace_is_one_complete_tree(ended):
    """M-290, M-291: whatever ended the run, and however often its messages came."""
    run, golden = ended
    assert drawn(run.trace()) == golden


def test_spans_in_sql_are_the_same_tree(site, ended):
    """M-291: names, kinds, statuses and places; siblings have no order (requirements §2.9)."""
    run = ended[0]
    known = {span["span_id"]: span for span in spans_of(site, run)}

    def path(span):
        above = () if span["span_id"] == run.id else path(known[span["parent_span_id"]])
        return (*above, (span["kind"], span["name"], span["status"]))

    assert sorted(path(each) for each in known.values() if each["run_id"] == run.id) == sorted(paths(run.trace()))


def paths(node, above=()):
    here = (*above, (node.kind, node.name, node.status))
    return [here, *(path for child in node.children for path in paths(child, here))]


def test_exported_spans_are_the_same_tree(site, collector, ended):
    """One for each row that has ended, child runs included; no other, and none below nothing."""
    for row in site.rows("SELECT flujo_kin(%(run)s) AS id", run=ended[0].id):
        assert_exported(site, collector, row["id"])


def test_no_span_is_an_orphan(site, ended):
    """M-292, M-293: one root, child runs included; none begins before its parent."""
    spans = spans_of(site, ended[0])
    known = {span["span_id"]: span for span in spans}
    assert len(known) == len(spans)
    assert [span["span_id"] for span in spans if span["parent_span_id"] is None] == [ended[0].id]
    for span in spans:
        parent = known[span["parent_span_id"] or span["span_id"]]
        assert parent["started_at"] <= span["started_at"]
        assert (span["duration_s"] or 0) >= 0


def test_each_run_has_a_row_with_the_count_of_its_spans(site, ended):
    run = ended[0]
    [row] = site.rows("SELECT * FROM flujo_trace WHERE run_id = %(run)s", run=run.id)
    trace = run.trace()
    assert (row["name"], row["status"], row["spans"]) == (trace.name, trace.status, len(paths(trace)))
    assert (row["tokens"], row["cost_usd"]) == (trace.attributes.get("tokens", 0), trace.attributes.get("cost_usd", 0))


def test_a_lost_worker_leaves_one_span_that_was_delivered_twice(site, runs):
    """M-013, M-292: the same attempt, the same span."""
    spans = {span["span_id"]: span["attributes"] for span in spans_of(site, runs["lost_worker"])}
    gate = spans[f"{runs['lost_worker'].id}::gate:1"]
    assert (gate["flujo.deliveries"], gate["flujo.attempt_number"], gate["success"]) == (2, 1, True)


def test_a_cancel_is_told_at_the_run(site, runs):
    """U-21: who asked is told, and that it was acknowledged."""
    names = [event.name for event in runs["cancel"].trace().events]
    assert names.count("run.cancel_requested") == names.count("run.cancelled") == 1
    assert names.index("run.cancel_requested") < names.index("run.cancelled")


def test_spans_have_the_names_of_the_contract(site, runs):
    """Requirements §2.9."""
    run = runs["answer"].id
    told = {span["span_id"]: span["attributes"] for span in spans_of(site, runs["answer"])}
    root = {"flujo.run_id": run, "flujo.pipeline.name": "pause_in_router", "flujo.budget.initial_tokens": GENEROUS}
    assert told[run].items() >= {**root, "success": True}.items()
    assert told[run].keys() >= {"flujo.pipeline.version"}
    step = {
        "flujo.step.id": "before",
        "flujo.step.type": "step",
        "flujo.step.policy": "step",
        "flujo.attempt_number": 1,
    }
    assert told[f"{run}:before"].items() >= {**step, "success": True}.items()
    asked = told[f"{run}:route/b/ask"]
    assert (asked["flujo.step.type"], asked["flujo.step.policy"]) == ("human", "resume")
    spent = {
        f"flujo.budget.{name}"
        for name in ("quota_before_tokens", "estimate_tokens", "actual_tokens", "actual_cost_usd")
    }
    assert told[f"{run}::before:1"].keys() >= {*spent, "latency_s", "flujo.worker"}
    assert told[f"{run}:route"]["flujo.step.type"] == "router"
    failed = told_of_failed(site, runs["failure"])
    assert (failed["success"], "which has already been tried" in failed["feedback"]) == (False, True)


@pytest.mark.parametrize("view", ["flujo_spans", "flujo_trace"])
def test_the_columns_of_the_views_are_documented(site, view):
    """They are a contract, in their order."""
    part = PAGE.partition(f"## Columns of `{view}`")[2].partition("\n## ")[0]
    listed = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| ([^|]+) \|", part, re.MULTILINE)))
    columns = "SELECT column_name AS name FROM information_schema.columns WHERE table_name = %(view)s ORDER BY ordinal_position"
    assert listed == [row["name"] for row in site.rows(columns, view=view)]


def test_every_attribute_of_the_contract_is_documented(site, runs):
    """Requirements §2.9: what the page lists, but for what only the tree has, is what spans have."""
    part = PAGE.partition("## Attributes")[2].partition("\n## ")[0]
    listed = set(re.findall(r"`([\w.]+)`", " ".join(re.findall(r"^\| ([^|]+) \|", part, re.MULTILINE))))
    told = {row["name"] for row in site.rows("SELECT DISTINCT jsonb_object_keys(attributes) AS name FROM flujo_spans")}
    assert {name for name in told if name.startswith("flujo.")} <= listed
    assert listed - told == {"flujo.input", "flujo.cache.hit", "flujo.agent"}


def told_of_failed(site, run):
    return next(s["attributes"] for s in spans_of(site, run) if s["kind"] == "attempt" and s["status"] == "failed")


def test_a_run_in_the_background_hangs_below_the_step_that_launched_it(site, runs):
    """SYS-31: the client stopped waiting, and still it is not an orphan."""
    run = runs["background"]
    [task] = site.rows("SELECT id FROM flujo_runs WHERE parent_run = %(run)s", run=run.id)
    [root] = site.rows("SELECT * FROM flujo_spans WHERE span_id = %(run)s", run=task["id"])
    [step] = site.rows("SELECT * FROM flujo_spans WHERE span_id = %(at)s", at=root["parent_span_id"])
    assert (step["run_id"], step["kind"]) == (run.id, "background")
    assert [each["attributes"]["flujo.is_background"] for each in (root, step)] == [True, True]


def spans_of(site, run):
    """The spans of a run and of the child runs that it waits for."""
    kin = [row["id"] for row in site.rows("SELECT flujo_kin(%(run)s) AS id", run=run.id)]
    return site.rows("SELECT * FROM flujo_spans WHERE run_id = ANY(%(runs)s) ORDER BY started_at, span_id", runs=kin)


def drawn(node):
    """A tree as a line: `#1` for an attempt, `!` and the status behind what has not succeeded; no times, no ids."""
    name = node.name.replace("attempt ", "#") if node.kind == "attempt" else f"{node.kind}:{node.name}"
    inside = " ".join(map(drawn, node.children))
    return name + ("" if node.status == "succeeded" else f"!{node.status}") + (f"[{inside}]" if inside else "")
