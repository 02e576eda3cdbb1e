"""Messages that are not ours, or were tampered with: no worker dies of one, nothing is executed, and work goes on."""

from __future__ import annotations

import base64

import orjson
import pytest
from fleet import STEADY, Site, assert_merged_once, wait_until

pytestmark = pytest.mark.acceptance

THREE = ["first", "second", "third"]
KEYS = {"k1": "a secret of the tests"}
ASIDE = "aside"


@pytest.fixture(scope="module")
def site(services, tmp_path_factory):
    """Clients and workers sign."""
    with Site(services, tmp_path_factory.mktemp("signed"), worker=STEADY, signing_keys=KEYS) as site:
        yield site


@pytest.fixture(scope="module")
def fleet(site):
    """One worker, so that a message that ends it would be noticed."""
    return site.workers()


@pytest.fixture
def victim(site):
    """A run that could be executed, with its genuine message taken from a queue that no worker looks at.

    Victims of earlier tests may lie there as well: after five seconds the sweeper sends again what was taken.
    """
    run = site.enqueue("three", queue=ASIDE)
    messages = [orjson.loads(raw) for raw in site.redis.lrange(ASIDE, 0, -1)]
    return run, next(message for message in messages if message["headers"]["flujo_run"] == run.id)


def body_of(message):
    return base64.b64decode(message["body"])


def with_body(message, body, **rest):
    return {**message, "body": base64.b64encode(body).decode(), **rest}


def with_header(message, **headers):
    return {**message, "headers": {**message["headers"], **headers}}


HOSTILE = {
    "not signed": lambda message: with_body(message, body_of(message).partition(b"\n")[2]),
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
    "an unknown task": lambda message: with_header(message, task="nobody.knows"),
    "another task": lambda message: with_header(message, task="flujo.sweep"),
    "another task id": lambda message: with_header(message, id=f"{message['headers']['flujo_run']}::second:1"),
}


@pytest.mark.parametrize("forge", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_message_executes_nothing_and_kills_nobody(site, fleet, victim, forge):
    """M-014, law of design §5: refused and recorded; the same worker goes on to do the next run."""
    run, message = victim
    forged = forge(message)
    assert forged != message
    site.redis.lpush("flujo.attempts", orjson.dumps(forged))
    assert_merged_once(site, site.enqueue("three"), THREE)
    wait_until(lambda: site.redis.llen("flujo.attempts") == 0)
    assert site.executions(run.id) == []
    assert len(fleet.pids) == 1


def test_the_genuine_message_of_a_victim_is_executed(site, fleet, victim):
    """M-014: what was refused above was refused for its forgery alone; a signed run works."""
    run, message = victim
    site.redis.lpush("flujo.attempts", orjson.dumps(message))
    wait_until(lambda: site.executions(run.id, "first"))
    assert body_of(message).startswith(b"fw1:k1:")
