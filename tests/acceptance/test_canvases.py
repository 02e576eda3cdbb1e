"""Runs inside the canvases of someone's Celery app: results, errors, and kill -9 at each point between Celery and the run."""

import json
import os
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager

import pytest
from celery import Celery, chain, chord, group
from celery.exceptions import ChordError

from flujo_client import Pipeline
from flujo_client.errors import PipelineError, RunFailed
from flujo_worker.celery_app.consumer.pool import POOL
from tests.support.breadth import large
from tests.support.fleet import BRISK, FOLDER, STEPS, wait_until
from tests.support.nursery import nursery

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.services,
    pytest.mark.usefixtures("own_workers"),
    pytest.mark.site(worker=BRISK),
]

PATIENCE_S = 60


@pytest.fixture(scope="module")
def canvas(site):
    """The module of the app, in this process, which is one that sends canvases."""
    with pytest.MonkeyPatch.context() as patched:
        for name, value in {**site.settings.as_environment(), FOLDER: str(site.folder)}.items():
            patched.setenv(name, value)
        sys.modules.pop("canvas_app", None)
        import canvas_app

        yield canvas_app
        from flujo_client.config.manager import ConfigManager

        ConfigManager.attached = None


@contextmanager
def worker(site, pool, *, failpoints="", **environment):
    settings = site.settings.model_copy(update={"failpoints": failpoints})
    variables = {**os.environ, **settings.as_environment(), "PYTHONPATH": str(STEPS), FOLDER: str(site.folder)}
    variables |= {"CELERY_CUSTOM_WORKER_POOL": POOL, **environment}
    arguments = ["-A", "canvas_app", "worker", "-c", "4", "-P", pool, "-l", "INFO"]
    before = site.live_pids()
    process = nursery().fork(arguments, variables, site.folder / "workers.log", module="celery")
    try:
        wait_until(lambda: (site.live_pids() - before) or process.poll() is not None, what=site.log)
        yield process
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.parametrize("pool", ["custom", large("threads"), large("prefork")])
def test_a_run_stands_in_every_canvas_as_a_task_does(site, canvas, pool):
    double, add, mul, total = canvas.double, canvas.add, canvas.mul, canvas.total
    shapes = {
        "alone": (double.s(5), 11),
        "chain": (chain(add.s(1, 2), double.s(), mul.s(10)), 70),
        "immutable": (chain(add.s(1, 2), double.si(4), mul.s(10)), 90),
        "group": (group(double.s(5), double.s(6)), [11, 13]),
        "chord": (chord([double.s(5), add.s(1, 2), double.s(3)], total.s()), 21),
        "body": (chord([add.s(1, 2), add.s(3, 4)], canvas.entire.s()), [3, 7]),
        "chain of a group": (chain(double.s(1), group(double.s(), add.s(1)), total.s(), double.s()), 23),
        "chain in a chord": (chord([chain(double.s(1), double.s()), double.s(2)], total.s()), 12),
        "chord in a chord": (chord([chord([double.s(1), double.s(2)], total.s()), double.s(3)], total.s()), 15),
        "model": (chain(canvas.pair.s(1)), {"left": 1, "right": 2}),
        "tenant": (double.s(1, tenant="acme", priority=3, metadata={"shop": 7}), 3),
    }
    with worker(site, pool):
        sent = {name: shape.apply_async() for name, (shape, _) in shapes.items()}
        for name, each in sent.items():
            wait_until(each.ready, what=lambda name=name: f"{name}\n{site.log()}")
        got = {name: each.get() for name, each in sent.items()}
        assert got == {name: expected for name, (_, expected) in shapes.items()}, site.log()
        record = site.client.get_run(sent["tenant"].id).record()
    assert (record.tenant, record.metadata["shop"]) == ("acme", 7)


@pytest.mark.parametrize("pool", ["custom", large("threads"), large("prefork")])
def test_an_error_of_a_run_is_the_tasks(site, canvas, pool):
    """link is not called, link_error is, whatever its signature; a chord fails, and so does a chain at this place."""
    notes = site.folder / "canvas"
    notes.unlink(missing_ok=True)
    failing, add, total = canvas.failing, canvas.add, canvas.total
    with worker(site, pool):
        alone = failing.s(1).set(link=add.s(500), link_error=[canvas.regret.s(), canvas.mourn.s()]).apply_async()
        chained = chain(failing.s(1), add.s(600)).apply_async()
        joined = chord([failing.s(1), add.s(1, 2)], total.s().on_error(canvas.regret.s())).apply_async()
        linked = canvas.double.s(20).set(link=[add.s(100), add.s(200)]).apply_async()
        for failed in (alone, chained, joined):
            # for a failed chord, Celery raises a header task's error or a ChordError, whichever it sees first
            errors = (RunFailed, ChordError) if failed is joined else RunFailed
            with pytest.raises(errors, match="ValueError: no such order"):
                failed.get(timeout=PATIENCE_S)
        with pytest.raises(PipelineError, match="one input, got 2"):
            chain(add.s(1, 2), canvas.double.s(4)).apply_async().get(timeout=PATIENCE_S)
        wait_until(joined.ready, what=site.log)
        assert isinstance(joined.result, ChordError)
        assert linked.get(timeout=PATIENCE_S) == 41
        expected = {"add 41 100", "add 41 200", "mourn"}
        wait_until(lambda: expected <= set(notes.read_text().splitlines()), what=site.log)
        cancelled = canvas.asking.s(1).set(link_error=canvas.regret.s()).apply_async()
        wait_until(lambda: site.rows("SELECT FROM flujo_runs WHERE id = %(id)s", id=cancelled.id), what=site.log)
        site.client.get_run(cancelled.id).cancel(reason="sold out")
        wait_until(cancelled.ready, what=site.log)
        assert (cancelled.state, "sold out" in str(cancelled.result)) == ("REVOKED", True), site.log()
        wait_until(lambda: notes.read_text().count("regret") == 3, what=site.log)
    lines = notes.read_text()
    assert lines.count("regret RunFailed") == 1
    assert lines.count("regret TaskRevokedError") == 1
    assert lines.count("regret ChordError") == 1
    assert "add 500" not in lines
    assert " 600" not in lines


@pytest.mark.large
def test_beat_starts_runs(site, canvas, tmp_path):
    environment = {**os.environ, **site.settings.as_environment(), "PYTHONPATH": str(STEPS), FOLDER: str(site.folder)}
    command = [sys.executable, "-m", "celery", "-A", "canvas_app", "beat", "-s", str(tmp_path / "schedule")]
    started = "SELECT id FROM flujo_runs WHERE metadata -> 'celery' ->> 'j' LIKE '%%celery beat%%' OR name = 'double'"
    before = {row["id"] for row in site.rows(started)}
    with worker(site, "threads"), (site.folder / "workers.log").open("ab") as log:
        beat = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            wait_until(lambda: len(site.rows(started)) >= len(before) + 2, what=site.log)
        finally:
            beat.terminate()
            beat.wait(60)
        results = [canvas.app.AsyncResult(row["id"]) for row in site.rows(started) if row["id"] not in before]
        assert all(each.get(timeout=PATIENCE_S) == 101 for each in results), site.log()


@pytest.mark.large
def test_with_pickle_a_model_stays_a_model(site, canvas):
    """A program that has not imported the pipelines sends the task by its name."""
    somebody = Celery("somebody", broker=site.settings.broker(), backend=site.settings.broker(), set_as_current=False)
    somebody.conf.update(task_serializer="pickle", result_serializer="pickle", accept_content=["pickle"])
    pair, entire = (
        somebody.signature("flujo.run", kwargs={"pipeline": f"canvas_app:{name}"}) for name in ("pair", "entire")
    )
    with worker(site, "threads", CANVAS_SERIALIZER="pickle", C_FORCE_ROOT="1"):
        sent = chain(pair.clone((1,)), entire, app=somebody).apply_async()
        assert sent.get(timeout=PATIENCE_S) == canvas.Pair(left=1, right=2), site.log()


def test_in_an_eager_app_a_run_in_a_canvas_is_performed_at_once(canvas):
    canvas.app.conf.update(task_always_eager=True, task_store_eager_result=True)
    try:
        assert chain(canvas.add.s(1, 2), canvas.double.s(), canvas.mul.s(10)).delay().get() == 70
    finally:
        canvas.app.conf.update(task_always_eager=False, task_store_eager_result=False)


def shapes_of(app):
    add, mul, total, const = app.add, app.mul, app.total, app.const
    return {
        "task": add.s(1, 2),
        "chain": chain(add.s(1, 2), mul.s(10), add.s(1)),
        "keywords": chain(add.s(1, 2), app.triple.s(middle=3, last=4)),
        "immutable": chain(add.s(1, 2), const.si(), add.s(1)),
        "group": group(add.s(1, 1), add.s(2, 2)),
        "chord": chord([add.s(i, i) for i in range(4)], total.s()),
        "chain of a group": chain(add.s(1, 1), group(mul.s(2), mul.s(3)), total.s()),
        "group of chains": chord(group(chain(add.s(1, 1), mul.s(2)), add.s(5, 5)), total.s()),
        "chord in a chord": chord([chord([add.s(1, 1), add.s(2, 2)], total.s()), add.s(3, 3)], total.s()),
        "map": total.map([[1, 2], [3, 4]]),
        "starmap": add.starmap([(1, 2), (3, 4)]),
        "chunks": add.chunks([(i, i) for i in range(6)], 2),
        "argument": app.of_order(17, [2, 3]),
        "another argument": app.of_order(1, [4, 5]),
        "another shape": app.of_order(1, range(5)),
    }


@pytest.mark.parametrize("pool", ["custom", large("threads"), large("prefork")])
def test_a_canvas_as_a_pipeline_gives_what_it_gives_in_celery(site, canvas, pool):
    shapes = shapes_of(canvas)
    with worker(site, pool):
        theirs = {name: shape.apply_async() for name, shape in shapes.items()}
        read = {name: json.loads(json.dumps(shape)) for name, shape in shapes.items()}
        ours = {name: site.client.enqueue(Pipeline.from_canvas(shape, name=name)) for name, shape in read.items()}
        got = {name: run.result(timeout=PATIENCE_S).output for name, run in ours.items()}
        assert got == {name: each.get(timeout=PATIENCE_S) for name, each in theirs.items()}, site.log()
        again = site.client.enqueue(Pipeline.from_canvas(canvas.of_order(2, [6, 7]), name="argument"))
        assert again.result(timeout=PATIENCE_S).output == [39, 0, 2]
        given = site.client.enqueue(Pipeline.from_canvas(chain(canvas.add.s(2), canvas.mul.s(10))), 5)
        assert given.result(timeout=PATIENCE_S).output == 70
    plans = site.rows("SELECT DISTINCT fingerprint FROM flujo_runs WHERE name = 'argument'")
    assert len(plans) == 1  # the arguments are no part of the plan


def test_what_a_canvas_may_have_and_a_run_may_not_is_refused_by_name(canvas):
    add, total = canvas.add, canvas.total
    refused = {
        "`link_error`.*hook": chain(add.s(1, 2), add.s(1).on_error(total.s())),
        r"`link`.*\|": group(add.s(1, 2).set(link=add.s(1))),
        "`countdown`.*the whole run": chord([add.s(1, 2).set(countdown=5)], total.s()),
        "`eta`": add.s(1, 2).set(eta="2030-01-01"),
        "`expires`.*deadline_s": add.s(1, 2).set(expires=5),
        "`priority`.*enqueue": add.s(1, 2).set(priority=5),
        "no task 'canvas.sub'": canvas.app.signature("canvas.sub", (1, 2)),
    }
    for words, shape in refused.items():
        with pytest.raises(PipelineError, match=words):
            Pipeline.from_canvas(shape)
    with pytest.raises(TypeError, match="singleton_key"):
        canvas.double.s(1, singleton_key="x")


@pytest.mark.parametrize(
    "place", ["run_started", large("before_commit"), large("hook_call_taken"), "task_ended", large("hooks_called")]
)
def test_a_worker_that_is_killed_between_celery_and_the_run_is_followed_by_another(site, canvas, place):
    """Task taken and run enqueued; run not ended; run ended and not delivered; delivered and not recorded: the chain goes on, at least once."""
    notes, marker = site.folder / "canvas", site.folder / f"killed-{place}"
    notes.unlink(missing_ok=True)
    with worker(site, "threads", failpoints=f"{place}:kill:{marker}") as first:
        sent = chain(canvas.add.s(1, 2), canvas.double.s(), canvas.add.s(100)).apply_async()
        assert first.wait(PATIENCE_S) == -9, site.log()
        with worker(site, "threads"):
            wait_until(sent.ready, what=site.log)
            owed = "SELECT FROM flujo_hook_calls"
            wait_until(lambda: not site.rows(owed), what=site.log)
    calls = Counter(notes.read_text().splitlines())
    assert sent.get() == 107
    assert calls["add 7 100"] in ((1, 2, 3) if place in ("task_ended", "hooks_called") else (1,)), site.log()
    assert len(site.rows("SELECT FROM flujo_runs WHERE id = %(id)s", id=sent.parent.id)) == 1


@pytest.mark.large
def test_a_worker_that_is_killed_before_it_has_enqueued_the_run_gets_the_task_again(site, canvas):
    """Nothing is recorded then: the broker delivers the task again after its visibility timeout, which is the app's."""
    marker = site.folder / "killed-taken"
    with worker(site, "threads", failpoints=f"task_taken:kill:{marker}") as first:
        sent = canvas.double.s(4).apply_async()
        assert first.wait(PATIENCE_S) == -9, site.log()
        with worker(site, "threads"):
            wait_until(sent.ready, what=site.log)
    assert sent.get() == 9


@pytest.mark.large
@pytest.mark.parametrize("place", ["after_claim", "before_commit", "before_publish"])
def test_a_canvas_as_a_pipeline_survives_a_kill(site, canvas, place):
    marker = site.folder / f"killed-inside-{place}"
    with worker(site, "threads", failpoints=f"{place}:kill:{marker}") as first:
        run = site.client.enqueue(Pipeline.from_canvas(canvas.of_order(17, [2, 3, 4])))
        assert first.wait(PATIENCE_S) == -9, site.log()
        with worker(site, "threads"):
            assert run.result(timeout=PATIENCE_S).output == [162, 0, 17], site.log()
