"""Time in one process: waits pass at once, in the order in which they end, and the clock shows when each of them ended."""

from human_parts import ask

from flujo_client import Pipeline, Step, StepConfig
from flujo_client.plan.plan import Backoff

DAY_S = 86_400.0


def waiting(name, seconds, *, times=1):
    """A step that fails, and waits as long before each further attempt."""
    backoff = Backoff(base_s=seconds, factor=1, cap_s=seconds, jitter=0)
    return Step(name, failing(times), config=StepConfig(max_retries=times, backoff=backoff))


def failing(times):
    left = [times]

    def fail(value):
        left[0] -= 1
        if left[0] >= 0:
            raise ValueError("not yet")
        return value

    return fail


def ended_at(engine, run, began):
    """When the run ended, in seconds since it began."""
    return engine.stores.reads.read_run(run).ended_at.timestamp() - began


def test_a_wait_is_skipped_and_moves_the_clock_by_its_length(engine):
    began = engine.now
    run = engine.enqueue(Pipeline([waiting("wait", DAY_S)]), "in")
    engine.drain()
    assert (engine.result(run).output, ended_at(engine, run, began)) == ("in", DAY_S)


def test_a_month_passes_with_questions_that_follow_from_each_other(engine):
    """The second question is asked when the first one expires, and its own time begins then, not at the month's end."""
    began = engine.now
    kind = {"on_expiry": "default", "default": "no"}
    first, second = ask("first", expires_s=DAY_S, **kind), ask("second", expires_s=2 * DAY_S, **kind)
    run = engine.enqueue(Pipeline([first, waiting("wait", 60.0), second]), "in")
    engine.drain()
    engine.pass_time(30 * DAY_S)
    assert (engine.result(run).run_status, ended_at(engine, run, began)) == ("succeeded", 3 * DAY_S + 60)
    assert engine.now - began == 30 * DAY_S


def test_what_is_due_later_waits_until_its_time(engine):
    run = engine.enqueue(Pipeline([waiting("wait", 60.0)]), "in")
    engine.pass_time(59)
    assert [row.status for row in engine.history(run)] == ["failed", "ready"]
    engine.pass_time(1)
    assert engine.result(run).run_status == "succeeded"


def test_all_time_passes_until_nothing_waits(engine):
    began = engine.now
    asked = engine.enqueue(Pipeline([ask(expires_s=30 * DAY_S)]), "in")
    dead = engine.enqueue(Pipeline([ask()]), "in", deadline=engine.now + 40 * DAY_S)
    open_ended = engine.enqueue(Pipeline([ask()]), "in")
    engine.pass_time()
    assert [engine.result(run).run_status for run in (asked, dead, open_ended)] == ["failed", "expired", "paused"]
    assert [ended_at(engine, run, began) for run in (asked, dead)] == [30 * DAY_S, 40 * DAY_S]
    assert engine.now - began == 40 * DAY_S


def test_a_deadline_before_the_next_attempt_ends_the_run_at_the_deadline(engine):
    began = engine.now
    run = engine.enqueue(Pipeline([waiting("wait", 60.0)]), "in", deadline=engine.now + 10)
    engine.drain()
    assert (engine.result(run).run_status, ended_at(engine, run, began)) == ("expired", 10)


def test_a_question_expires_while_another_run_waits(engine):
    """Draining leaves questions open, but skips no expiry that comes before the end of a wait."""
    began = engine.now
    asked = engine.enqueue(Pipeline([ask(expires_s=30)]), "in")
    later = engine.enqueue(Pipeline([ask(expires_s=90)]), "in")
    engine.enqueue(Pipeline([waiting("wait", 60.0)]), "in")
    engine.drain()
    assert [engine.result(run).run_status for run in (asked, later)] == ["failed", "paused"]
    assert (ended_at(engine, asked, began), engine.now - began) == (30, 60)


def test_runs_end_in_the_order_in_which_their_waits_do(engine):
    order = {name: engine.enqueue(Pipeline([waiting(name, s)]), "in") for name, s in [("b", 20.0), ("a", 10.0)]}
    began = engine.now
    engine.drain()
    assert [ended_at(engine, order[name], began) for name in "ab"] == [10, 20]
