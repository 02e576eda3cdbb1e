"""A worker and a run whose code has changed: policies, waiting for branches, older workers, parked runs (ADR 37)."""

import pytest

from flujo_client import ParallelStep, Pipeline, PipelineContext, Step, StepConfig
from flujo_client.config.manager import Settings
from flujo_client.config.models import Runs
from flujo_client.contract.envelope import Envelope
from flujo_client.errors import PipelineError, ReplayError
from flujo_client.pipeline.compile import compile_plan
from flujo_client.serial import loads
from flujo_worker.domain.carry_on import AT_ONCE
from flujo_worker.ports import ClaimId
from flujo_worker.replay.replay import replay
from flujo_worker.testing import LocalEngine
from tests.support.builders import member
from tests.support.memory import add_upkeep, asked
from tests.support.sweeping import Standing, sweeper_of


def work(data):
    return data


def rework(data):
    return f"{data} again"


def steps(*names, agent=work, **options):
    return Pipeline([Step(name, agent) for name in names], name="p", **options)


def named(engine, run, name):
    return [each for each in engine.story(run) if each.name == name]


def started_run(engine, pipeline):
    """A run whose first step is merged."""
    run = engine.enqueue(pipeline, "x")
    engine.deliver(engine.bus.popleft())
    return run


def test_what_is_to_come_is_run_as_the_new_code_says(engine):
    old = steps("a", "b")
    run = started_run(engine, old)
    engine.deploy(old, Pipeline([Step("a", work), Step("c", rework)], name="p"))
    engine.drain()
    assert engine.result(run).output == "x again"
    [told] = named(engine, run, "run.carried_on")
    assert (told.level, told.data["changes"]) == ("info", ["step 'b' was removed", "step 'c' was added"])


def test_a_change_of_what_has_run_is_a_warning(engine):
    old = steps("a", "b")
    run = started_run(engine, old)
    engine.deploy(old, Pipeline([Step("a", rework), Step("b", work)], name="p"))
    engine.drain()
    assert [each.level for each in named(engine, run, "run.carried_on")] == ["warning"]


@pytest.mark.parametrize("policy", ["pin", "park"])
@pytest.mark.parametrize("is_project", [False, True])
def test_a_policy_parks_what_could_continue(policy, is_project):
    own = None if is_project else policy
    settings = Settings(runs=Runs(on_change=policy if is_project else "carry_on"))
    with LocalEngine(settings) as engine:
        old = steps("a", "b", on_change=own)
        run = started_run(engine, old)
        engine.deploy(old, steps("a", "b", "c", on_change=own))
        engine.drain()
        assert engine.stores.reads.read_run(run).status == "parked"
        reason, parked = engine.stores.reads.read_run(run).reason, engine.stores.reads.read_run(run).parked
        assert (parked["kind"], parked["what"]) == ("pinned" if policy == "pin" else "code", "step 'c' was added")
        assert ("pinned to the code that it was started with" if policy == "pin" else "step 'c' was added") in reason
        assert named(engine, run, "run.carried_on") == []


@pytest.fixture
def other(engine):
    """A worker next to the engine's own, by a function that tells it that it has the code of a pipeline."""
    engine.stores.leases.register_worker(member("other"), 600.0)
    return lambda pipeline: engine.stores.code.note_plan("other", compile_plan(pipeline).fingerprint, None)


@pytest.mark.parametrize("policy", ["pin", "park", "carry_on"])
def test_a_run_is_left_to_a_live_worker_that_has_its_code(engine, other, policy):
    """It is at the head of the queue again, and parked only once no such worker is alive."""
    old = steps("a", "b", on_change=policy)
    run = started_run(engine, old)
    engine.deploy(old, steps("b", on_change=policy))  # what has been merged is gone, so the run cannot carry on
    other(old)
    waiting = engine.enqueue(steps("z"), "x")
    for _ in range(3):
        engine.deliver(engine.bus.popleft())
        assert [Envelope.from_wire(loads(each)).key for each in engine.bus] == [f"{run}::b:1", f"{waiting}::z:1"]
    assert engine.stores.reads.read_run(run).status == "running"
    assert [each.level for each in named(engine, run, "run.waits_for_old_code")] == ["info"]
    assert named(engine, run, "run.parked") == []
    engine.stores.leases.deregister_worker("other")
    engine.deliver(engine.bus.popleft())
    assert engine.stores.reads.read_run(run).status == "parked"
    assert named(engine, run, "run.waits_for_old_code")[0].data["reason"] == engine.stores.reads.read_run(run).reason


def test_an_attempt_that_no_worker_takes_is_published_ever_later(engine, other):
    """Workers with its code may be busy for long: then it does not go round and round."""
    old = steps("a", on_change="pin")
    run = engine.enqueue(old, "x")
    engine.deploy(old, steps("a", "b", on_change="pin"))
    other(old)
    waits = []
    for _ in range(AT_ONCE + 8):
        if not engine.bus:
            [until] = engine.stores.reads.waiting()
            waits.append(until - engine.now)
            engine.now = until
            engine.sweep()
        engine.deliver(engine.bus.popleft())
    assert waits == [0.5, 1, 2, 4, 8, 15, 15]
    assert engine.stores.reads.read_run(run).status == "running"


def test_the_policy_that_counts_is_the_run_s_own(engine):
    old = steps("a", "b", on_change="pin")
    run = started_run(engine, old)
    engine.deploy(old, steps("a", "b", on_change="carry_on"))
    engine.drain()
    assert engine.stores.reads.read_run(run).status == "parked"


def test_a_policy_that_there_is_not_is_refused():
    with pytest.raises(PipelineError, match="`on_change` must be one of 'carry_on', 'pin', 'park', got 'kill'"):
        steps("a", on_change="kill")


def branches(*names):
    parallel = ParallelStep("fan", branches={"x": Pipeline([Step(each, work) for each in names]), "y": Step("y", work)})
    return Pipeline([parallel], name="p", context_model=PipelineContext)


def test_a_run_waits_for_a_branch_that_runs_under_the_old_code(engine):
    old = branches("a", "b")
    run = engine.enqueue(old, "x")
    engine.deliver(engine.bus.popleft())
    first, second = (Envelope.from_wire(loads(each)) for each in engine.bus)
    engine.stores.leases.register_worker(member("other"), 60.0)
    engine.stores.attempts.claim(first.key, "other", max_lost=3)
    engine.deploy(old, branches("a", "b", "c"))
    engine.bus.popleft()
    assert engine.deliver(engine.bus.popleft()) == "waiting"
    [told] = named(engine, run, "run.waits_for_old_code")
    assert f"step '{first.step}' is running under the old code" in told.data["reason"]
    assert named(engine, run, "run.carried_on") == []
    engine.stores.attempts.defer(ClaimId(first.key, 1), 0.0)
    engine.drain()
    assert engine.stores.reads.read_run(run).status == "succeeded"
    assert len(named(engine, run, "run.carried_on")) == 1
    assert second.key in {each.key for each in engine.history(run)}


def test_a_worker_with_older_code_parks_the_run(engine):
    old, new = steps("a", "b"), steps("a", "b", "c")
    engine.now += 10
    run = started_run(engine, old)
    engine.now += 10
    reference = engine.stores.reads.read_run(run).reference
    engine._local.put(new, reference=reference)
    engine.drain()
    parked = engine.stores.reads.read_run(run)
    assert parked.status == "parked"
    assert "this worker was started before the code that the run uses" in parked.reason
    assert (parked.parked["kind"], parked.parked["what"]) == ("newer", compile_plan(old).fingerprint[:12])


def sweeper(engine):
    class Post:
        def epoch(self):
            return "e"

        def heads(self, queues):
            return dict.fromkeys(queues)

        def send(self, envelopes, *, first=False):
            engine._send(envelopes)

    lease = Standing("local", may_judge=False)
    return sweeper_of(
        add_upkeep(engine.stores),
        Post(),
        engine.coordinator,
        engine._local,
        lease=lease,
        changes=engine.changes,
        unpark_every_s=0.0,
    )


def test_a_sweep_moves_parked_runs_to_code_under_which_they_may_continue(engine):
    old = steps("a", "b")
    run = started_run(engine, old)
    engine.deploy(old, steps("z", "a", "b"))
    engine.drain()
    assert engine.stores.reads.read_run(run).status == "parked"
    engine.deploy(old, steps("a", "b", "c"))
    sweeper(engine).sweep()
    engine.drain()
    assert engine.stores.reads.read_run(run).status == "succeeded"
    assert [each.step for each in engine.history(run)] == ["a", "b", "c"]


def test_a_parked_run_that_cannot_be_moved_does_not_hide_the_others(engine, monkeypatch):
    monkeypatch.setattr("flujo_worker.recovery.lost_work.BATCH", 1)
    old = steps("a", "b")
    stays, goes = started_run(engine, old), None
    engine.now += 1
    engine.bus.clear()
    goes = engine.enqueue(old, "x")
    engine.bus.clear()
    for run in (stays, goes):
        [row] = [each for each in engine.history(run) if each.ended_at is None]
        assert engine.stores.attempts.claim(row.key, "local", max_lost=3).fence
        assert engine.stores.plan_moves.park(ClaimId(row.key, 1), "other code")
    engine.deploy(old, steps("z", "a", "b"))
    sweeping = sweeper(engine)
    for _ in range(2):
        sweeping.sweep()
    engine.drain()
    assert [engine.stores.reads.read_run(run).status for run in (stays, goes)] == ["parked", "succeeded"]


def test_the_plan_of_a_worker_is_kept_for_those_who_compare(engine):
    old, new = steps("a", "b"), steps("z", "a", "b")
    started_run(engine, old)
    engine.deploy(old, new)
    engine.drain()
    assert engine.stores.code.plan(compile_plan(new).fingerprint) is not None


def replayed(engine, run):
    stores = engine.stores
    return replay(asked(stores).read_recording(run), asked(stores).read_notices(run), stores.reads.read_scopes(run), [])


def test_a_run_under_changed_code_is_replayed_by_its_last_plan(engine):
    old = steps("a", "b")
    run = started_run(engine, old)
    engine.deploy(old, steps("a", "n", "b"))
    engine.drain()
    assert (replayed(engine, run).notices, replayed(engine, run).difference) == (3, None)


def test_a_run_whose_merged_step_was_renamed_is_not_replayed(engine):
    old = steps("a", "b")
    run = started_run(engine, old)
    engine.deploy(old, steps("z", "b"))
    engine.drain()
    assert engine.stores.reads.read_run(run).status == "succeeded"
    with pytest.raises(ReplayError, match="step 'a' ran under another plan"):
        replayed(engine, run)


def test_retries_continue_counting(engine):
    class Fails:
        calls = 0

        def run(self, data):
            self.calls += 1
            raise ValueError("no")

    agent = Fails()
    old = Pipeline([Step("a", agent, config=StepConfig(max_retries=1))], name="p")
    run = started_run(engine, old)
    engine.deploy(old, Pipeline([Step("a", agent, config=StepConfig(max_retries=2))], name="p"))
    engine.drain()
    assert agent.calls == 3
    assert [each.number for each in engine.history(run)] == [1, 2, 3]
