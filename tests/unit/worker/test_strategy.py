"""What our tasks take from a message: the signed body, and of the headers nothing that it does not repeat."""

import base64
from dataclasses import replace

import orjson
import pytest
from kombu.message import Message

from flujo_client.config.manager import Settings
from flujo_client.contract.envelope import (
    TASK_ATTEMPT,
    TASK_HEALTH_CHECK,
    TASK_JOIN,
    TASK_RESUME,
    TASK_START,
    TASK_SWEEP,
)
from flujo_client.transport.broker import Broker
from flujo_client.transport.entry import CONTENT_TYPE
from flujo_client.transport.messages import task_headers
from flujo_client.transport.wire import dump, register
from flujo_worker.celery_app.consumer.strategy import checked_headers
from flujo_worker.errors import WireError
from tests.support.builders import enqueued
from tests.support.junk import as_json, body_of, carrying, embedding, with_body, with_header

KEYS = (("k1", b"a secret of the tests"),)
LANES = {"f": 2, "f/b/g": 1}
KINDS = {"step": TASK_ATTEMPT, "start": TASK_START, "resume": TASK_RESUME, "join": TASK_JOIN}
TASKS = (*KINDS.values(), TASK_SWEEP, TASK_HEALTH_CHECK)


class Lists:
    """Takes what a broker pushes."""

    def __init__(self):
        self.pushed = []

    def lpush(self, _key, *items):
        self.pushed += items


def published(kind="step", *, lanes=None, keys=KEYS):
    """A message as our broker publishes it."""
    first = replace(enqueued(run_id="run").first, kind=kind, lanes=lanes or {}, address="f/b/g/x/a" if lanes else "a")
    settings = Settings(
        database_url="postgresql://nowhere/none",
        broker_url="redis://nowhere",
        signing_keys={name: secret.decode() for name, secret in keys},
    )
    broker = Broker(settings)
    broker.redis = lists = Lists()
    broker.publish([first]) if kind != "sweep" else broker.request_sweep("flujo.control")
    [item] = lists.pushed
    return orjson.loads(item)


@pytest.fixture(params=["signed", "unsigned"], autouse=True)
def keys(request):
    """With keys and without: what does not fit its headers is refused either way."""
    keys = KEYS if request.param == "signed" else ()
    register(keys)
    yield keys
    register()


def signed(keys, args, *, task, key, kwargs=None, embed=None, **headers):
    """A message with a body of our making, signed as by the holder of the keys."""
    body = dump((args, kwargs or {}, embed or {}), keys=keys)
    message = {"content-type": CONTENT_TYPE, "content-encoding": "binary", "properties": {}}
    return with_body({**message, "headers": {**task_headers(task, key), **headers}}, body)


def received(message, *, at=None):
    """The headers that the task named in a message, or another one, would see."""
    read = Message(
        body=base64.b64decode(message["body"]),
        headers=message["headers"],
        content_type=message["content-type"],
        content_encoding=message["content-encoding"],
        accept={CONTENT_TYPE, "application/json"},
    )
    return checked_headers(at or message["headers"]["task"], read)


def refused(message, **rest):
    """The reason for which a message is refused."""
    with pytest.raises(WireError) as error:
        received(message, **rest)
    return error.value.reason


@pytest.mark.parametrize("lanes", [{}, {"f": 0}, LANES])
@pytest.mark.parametrize("kind", KINDS)
def test_our_messages_are_taken(keys, kind, lanes):
    """M-014: what a client or a worker publishes, at any depth of fan-outs, comes with the headers it was given."""
    message = published(kind, lanes=lanes, keys=keys)
    given = {name: value for name, value in message["headers"].items() if name != "flujo_sent_at"}
    assert received(message) == given


def test_a_sweep_is_taken(keys):
    assert received(published("sweep", keys=keys))["task"] == TASK_SWEEP


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("kind", [*KINDS, "sweep"])
def test_a_body_is_taken_by_its_own_task_alone(keys, kind, task):
    """Law of design §5: headers are not signed, so a swapped task name must not run. A sweep's body names none, and asks for nothing."""
    message = published(kind, lanes=LANES, keys=keys)
    swapped = with_header(message, task=task)
    harmless = kind == "sweep" and task in (TASK_SWEEP, TASK_HEALTH_CHECK)
    if task == message["headers"]["task"] or harmless:
        assert received(swapped)["task"] == task
    else:
        assert refused(swapped) == "mismatched"


@pytest.mark.parametrize("kind", KINDS)
def test_another_id_is_refused(keys, kind):
    """Law of design §5: the attempt's key is repeated, and compared with the request's id."""
    assert refused(with_header(published(kind, keys=keys), id="run::b:1")) == "mismatched"


@pytest.mark.parametrize("kind", [*KINDS, "sweep"])
def test_what_other_serializers_wrote_is_refused(keys, kind):
    """M-014: an app that accepts JSON does not make our tasks accept it."""
    assert refused(as_json(published(kind, keys=keys))) == "foreign"


@pytest.mark.parametrize("kind", [*KINDS, "sweep"])
def test_what_is_signed_by_no_one_we_know_is_refused_and_not_told(kind):
    """M-014, SYS-27."""
    message = published(kind, keys=(("k9", b"another secret here"),))
    with pytest.raises(WireError) as error:
        received(message)
    assert error.value.reason == "undecodable"
    assert "in" not in error.value.message.split()
    assert body_of(message).decode() not in error.value.message


@pytest.mark.parametrize("name", ["callbacks", "errbacks", "chain"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_message_asks_celery_for_nothing_else(keys, kind, name):
    """Design §4: a signature that Celery would send afterwards is not ours, whoever signed it."""
    args = orjson.loads(body_of(published(kind, keys=())))[0]
    key = args[-1]["key"]
    embed = {name: [{"task": "shop.add", "args": [1, 2]}]}
    assert refused(signed(keys, args, task=KINDS[kind], key=key, embed=embed)) == "mismatched"


@pytest.mark.parametrize(
    "embed", [{"id": "another"}, {"group": "g"}, {"chord": {"task": "shop.add", "args": [1], "options": {}}}]
)
def test_nothing_else_can_be_embedded(keys, embed):
    """Celery puts whatever a body embeds into the task's request."""
    args = orjson.loads(body_of(published(keys=())))[0]
    assert refused(signed(keys, args, task=TASK_ATTEMPT, key=args[0]["key"], embed=embed)) == "mismatched"


def spoilt_chords():
    """Chords that none of our messages is a part of."""
    _, _, embed = orjson.loads(body_of(published(lanes=LANES, keys=())))
    chord, options = embed["chord"], embed["chord"]["options"]
    return {
        "another task": {**chord, "task": "shop.add"},
        "another run's": {**chord, "args": [{**chord["args"][0], "key": "other:f:f:join"}]},
        "another queue's, as a number": {**chord, "options": {**options, "queue": 5}},
        "one with a callback": {**chord, "options": {**options, "link": [{"task": "shop.add"}]}},
        "one around it that is another's": {**chord, "options": {**options, "chord": {"task": "shop.add"}}},
        "no signature": 5,
    }


@pytest.mark.parametrize("name", spoilt_chords())
def test_a_chord_rings_for_a_fan_out_of_its_run(keys, name):
    """M-007: membership is derived, so whatever is not derivable is not ours."""
    args, _, embed = orjson.loads(body_of(published(lanes=LANES, keys=())))
    place = {"group": "chord:run:f/b/g", "group_index": 1}
    whole = signed(keys, args, task=TASK_ATTEMPT, key=args[0]["key"], embed=embed, **place)
    assert received(whole)["group"] == "chord:run:f/b/g"
    spoilt = signed(keys, args, task=TASK_ATTEMPT, key=args[0]["key"], embed={"chord": spoilt_chords()[name]}, **place)
    assert refused(spoilt) == "mismatched"


@pytest.mark.parametrize(
    "place",
    [{"group": None}, {"group": "chord:run:f"}, {"group_index": None}, {"group_index": True}, {"group_index": "1"}],
)
def test_a_chords_group_fits_its_signed_body(keys, place):
    assert refused(with_header(published(lanes=LANES, keys=keys), **place)) == "mismatched"


@pytest.mark.parametrize(
    "header",
    [
        {"eta": "2999-01-01T00:00:00"},
        {"expires": "1999-01-01T00:00:00"},
        {"timelimit": [0.001, 0.001]},
        {"timelimit": "soon"},
        {"ignore_result": False},
        {"shadow": "harmless"},
        {"retries": "many"},
        {"stamped_headers": ["who"], "stamps": {"who": "me"}},
        {"argsrepr": "a lie", "root_id": [], "parent_id": "another"},
        {"anything": {"else": [1]}},
    ],
    ids=str,
)
def test_headers_that_no_one_signed_are_not_taken_over(keys, header):
    """Law of design §5: what is not repeated in the body, Celery does not get to see."""
    message = published(keys=keys)
    assert received(with_header(message, **header)) == received(message)


def test_a_scheduled_call_may_expire(keys):
    message = with_header(published("sweep", keys=keys), expires="2026-01-01T00:00:00+00:00")
    assert received(message)["expires"] == "2026-01-01T00:00:00+00:00"
    assert refused(with_header(message, expires=["soon"])) == "mismatched"
    assert refused(with_header(message, id=5)) == "mismatched"


@pytest.mark.parametrize(
    "payload",
    [
        [],
        [1],
        {},
        {"args": [], "kwargs": {}},
        [[], {}, {}, {}],
        [5, {}, {}],
        [[5], {}, None],
        [[[]], {}, {}],
        [["x"], {}, {}],
    ],
)
def test_bodies_that_are_none_are_refused(keys, payload):
    body = dump(payload, keys=keys)
    assert refused(with_body(published(keys=keys), body)) == "mismatched"


def test_what_is_compressed_is_refused(keys):
    """The screen refuses it before it is unpacked; here it would have been."""
    assert refused(with_header(published(keys=keys), compression="gzip")) == "compressed"


def test_a_body_is_named_by_its_key_alone():
    """Unsigned, an envelope can say what it likes but whose attempt it is."""
    register()
    message = carrying(embedding(published(keys=())), key="run::b:1")
    assert refused(message) == "mismatched"
