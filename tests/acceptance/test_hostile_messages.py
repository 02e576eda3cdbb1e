"""Messages that are not ours, or were tampered with: no worker dies of one, nothing is executed, and work continues."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import orjson
import pytest
from celery import Celery

from flujo_client.transport.dead_letters import DeadLetters
from tests.support.breadth import large
from tests.support.fleet import FOLDER, STEADY, STEPS, assert_merged_once, wait_until
from tests.support.junk import JUNK, MEGABYTE, as_json, body_of, bomb, embedding, push, with_body, with_header

THREE = ["first", "second", "third"]
KEYS = {"k1": "a secret of the tests"}
# Clients and workers sign.
pytestmark = [pytest.mark.acceptance, pytest.mark.site(worker=STEADY, signing_keys=KEYS)]
QUEUES = ("flujo.attempts", "flujo.control")
ASIDE = "aside"
SECRET = "swordfish"


@pytest.fixture(scope="module")
def services(services_to_break):
    """Return services that no other test process uses: a test here closes every connection to Redis."""
    return services_to_break


@pytest.fixture(scope="module", params=["flujo worker", large("celery -A shop_app worker")])
def worker(request, site):
    """One worker, so that a message that ends it would be noticed: our own app, or someone's with its stock consumer."""
    if request.param == "flujo worker":
        [process] = site.workers().processes
    else:
        environment = {
            **os.environ,
            **site.settings.as_environment(),
            "PYTHONPATH": str(STEPS),
            FOLDER: str(site.folder),
        }
        command = [sys.executable, "-m", "celery", "-A", "shop_app", "worker", "-P", "threads", "-c", "4", "-l", "INFO"]
        with (site.folder / "workers.log").open("ab") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        wait_until(lambda: process.pid in site.live_pids(), what=site.log)
    yield process
    process.kill()
    process.wait()
    site.dismiss()


@pytest.fixture
def victim(site):
    """A run that could be executed, with its genuine message taken from a queue that no worker looks at.

    Victims of earlier tests may lie there as well: after five seconds the sweeper sends again what was taken.
    """
    run = site.enqueue("three", queue=ASIDE)
    messages = [orjson.loads(raw) for raw in site.redis.lrange(ASIDE, 0, -1)]
    return run, next(message for message in messages if message["headers"]["flujo_run"] == run.id)


def refused(site):
    """How many messages the site's workers have refused so far."""
    return sum(int(count) for count in site.redis.hvals("flujo:refused"))


def peak_bytes(process):
    """The most memory that a process ever had."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def chained(message):
    """The message, asking Celery to send a task of the app's when it succeeds."""
    return embedding(message, callbacks=[{"task": "shop.add", "args": [1, 2], "kwargs": {}, "options": {}}])


HOSTILE = {
    "not signed": lambda message: with_body(message, body_of(message).partition(b"\n")[2]),
    "not signed, as JSON": as_json,
    "tampered": lambda message: with_body(message, body_of(message).replace(b'"first"', b'"third"')),
    "signed by a stranger": lambda message: with_body(message, body_of(message).replace(b"fw1:k1", b"fw1:k2", 1)),
    "application/data": lambda message: {**message, "content-type": "application/data"},
    "a bare number": lambda message: with_body(message, b"5"),
    "a bare number as JSON": lambda message: {**with_body(message, b"5"), "content-type": "application/json"},
    "pickle": lambda message: {
        **with_body(message, b"\x80\x04K\x05."),
        "content-type": "application/x-python-serialize",
    },
    "no body": lambda message: with_body(message, b""),
    "with a callback": lambda message: chained(as_json(message)),
    "an unknown task": lambda message: with_header(message, task="nobody.knows"),
    "another task": lambda message: with_header(message, task="flujo.sweep"),
    "another task of the same kind": lambda message: with_header(message, task="flujo.start"),
    "another task id": lambda message: with_header(message, id=f"{message['headers']['flujo_run']}::second:1"),
    "a part of a chord": lambda message: with_header(message, group="chord:another:f", group_index=0),
    "a small bomb": partial(bomb, size=MEGABYTE),
}


@pytest.mark.parametrize("forge", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_message_executes_nothing_and_kills_no_one(site, worker, victim, forge):
    """M-014, law of design §5: refused, counted, and the same worker continues to do the next run."""
    run, message = victim
    forged = forge(message)
    assert forged != message
    before = refused(site)
    site.redis.lpush("flujo.attempts", orjson.dumps(forged))
    wait_until(lambda: site.redis.llen("flujo.attempts") == 0)
    assert_merged_once(site, site.enqueue("three"), THREE)
    assert site.executions(run.id) == []
    assert worker.poll() is None
    wait_until(lambda: refused(site) > before)
    assert refused(site) == before + 1


def test_the_genuine_message_of_a_victim_is_executed(site, worker, victim):
    """M-014: what was refused above was refused for its forgery alone; a signed run works."""
    run, message = victim
    site.redis.lpush("flujo.attempts", orjson.dumps(message))
    wait_until(lambda: site.executions(run.id, "first"))
    assert body_of(message).startswith(b"fw1:k1:")


@pytest.mark.parametrize("queue", QUEUES)
def test_junk_in_a_queue_ends_no_worker(site, worker, queue):
    """Law of design §4: whatever is in the list, it is taken once and put aside, and the same worker continues."""
    before = refused(site)
    push(site.redis, queue, JUNK.values())
    wait_until(lambda: site.redis.llen(queue) == 0 or worker.poll() is not None, what=site.log)
    assert_merged_once(site, site.enqueue("three"), THREE)
    assert worker.poll() is None
    wait_until(lambda: site.redis.hlen("unacked") == 0)
    assert refused(site) - before == len(JUNK)


def test_junk_ends_no_worker_that_has_connected_again(site, worker):
    """Law of design §4: each connection has its own channels, and the same gate before them."""
    for kind in ("normal", "pubsub"):
        site.redis.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
    assert_merged_once(site, site.enqueue("three"), THREE)
    before = refused(site)
    push(site.redis, "flujo.attempts", JUNK.values())
    wait_until(lambda: site.redis.llen("flujo.attempts") == 0 or worker.poll() is not None, what=site.log)
    assert_merged_once(site, site.enqueue("three"), THREE)
    assert worker.poll() is None
    assert refused(site) - before == len(JUNK)


def test_a_bomb_is_refused_before_it_is_unpacked(site, worker, victim):
    """Law of design §5: 400 MB in a message of half a megabyte, and no worker takes a hundredth of it."""
    _, message = victim
    before = peak_bytes(worker)
    push(
        site.redis,
        "flujo.attempts",
        [orjson.dumps(bomb(message)), orjson.dumps(bomb(with_header(message, task="nobody.knows")))],
    )
    wait_until(lambda: site.redis.llen("flujo.attempts") == 0)
    assert_merged_once(site, site.enqueue("three"), THREE)
    assert peak_bytes(worker) - before < 60 * MEGABYTE


def test_a_refused_body_is_in_no_log(site, worker):
    """SYS-27: what a message holds may be secret, whoever signed it."""
    run = site.enqueue("three", [SECRET], queue=ASIDE)
    messages = [orjson.loads(raw) for raw in site.redis.lrange(ASIDE, 0, -1)]
    message = next(each for each in messages if each["headers"]["flujo_run"] == run.id)
    signed_by_another = with_body(message, body_of(message).replace(b"fw1:k1", b"fw1:k2", 1))
    swapped = with_header(message, task="nobody.knows")
    push(site.redis, "flujo.attempts", map(orjson.dumps, (signed_by_another, as_json(message), swapped)))
    wait_until(lambda: site.redis.llen("flujo.attempts") == 0)
    assert_merged_once(site, site.enqueue("three"), THREE)
    assert SECRET not in (site.folder / "workers.log").read_text(errors="replace")


@pytest.mark.parametrize("worker", ["celery -A shop_app worker"], indirect=True)
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_an_attached_apps_own_messages_keep_its_own_rules(site, worker, compression):
    """Design §4: what it accepts and unpacks is its own matter, in its own queue and beside ours."""
    theirs = Celery("somebody", broker=site.settings.broker(), backend=site.settings.broker(), set_as_current=False)
    answers = [
        theirs.send_task("shop.add", (n, 1), compression=compression, queue=queue)
        for n, queue in enumerate(("celery", "flujo.attempts"))
    ]
    assert [answer.get(timeout=60) for answer in answers] == [1, 2]
    theirs.close()


def test_junk_for_remote_control_ends_no_worker(site, worker):
    """Law of design §4: a broadcast comes by another way than a list, and is read by the same kombu."""
    number = site.redis.connection_pool.connection_kwargs["db"]
    heard = [site.redis.publish(f"/{number}.celery.pidbox", item) for item in JUNK.values()]
    assert any(heard)
    assert_merged_once(site, site.enqueue("three"), THREE)
    assert worker.poll() is None


def test_a_command_of_another_app_is_no_refused_message(site, worker):
    """Each starting worker greets all others of its broker, in JSON where that is its app's serializer."""
    letters = DeadLetters(site.redis)
    before = letters.refused().count
    theirs = Celery("somebody", broker=site.settings.broker(), backend=site.settings.broker(), set_as_current=False)
    theirs.control.broadcast("hello", arguments={"from_node": "theirs@here", "revoked": {}})
    theirs.close()
    assert_merged_once(site, site.enqueue("three"), THREE)
    assert worker.poll() is None
    assert letters.refused().count == before


def test_a_bomb_for_remote_control_is_not_unpacked(site, worker, victim):
    """Law of design §5."""
    _, message = victim
    number = site.redis.connection_pool.connection_kwargs["db"]
    before = peak_bytes(worker)
    assert site.redis.publish(f"/{number}.celery.pidbox", orjson.dumps(bomb(message)))
    assert_merged_once(site, site.enqueue("three"), THREE)
    assert peak_bytes(worker) - before < 60 * MEGABYTE
