"""The screen before kombu: what passes, kombu and Celery can read; what would end a worker, or be unpacked, is refused."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu import Connection
from kombu.utils.json import dumps, loads

from flujo_client.contract.envelope import TASK_ATTEMPT
from flujo_client.transport.broker import celery_message
from flujo_client.transport.messages import task_message
from flujo_client.transport.wire import dump
from flujo_worker.celery_app.consumer.screen import largest_item, screen
from flujo_worker.errors import WireError
from tests.support.builders import enqueued
from tests.support.junk import JUNK, MEGABYTE, bomb, with_header

OWN = frozenset({TASK_ATTEMPT})
THEIRS = "shop.add"

JUDGED_LATER = {
    "our task without an id": False,
    "an unknown content type": True,
    "an unknown content encoding": True,
    "trusted bytes for our task": True,
    "a time limit that is text": True,
    "an ETA that is a list": True,
    "no task": True,
}
"""Junk that kombu can read: what becomes of it, the strategy and the consumer say."""


def genuine():
    first = enqueued().first
    body = dump(((first.to_wire(),), {}, {}))
    return orjson.loads(
        celery_message(task_message(TASK_ATTEMPT, body, task_id=first.key, queue="q", headers={}, priority=3))
    )


def screened(item, *, is_ours=True, others=(), max_bytes=MEGABYTE):
    """The reason for which an item is refused, if it is."""
    try:
        screen(item, is_ours=is_ours, own=OWN, others=others, max_bytes=max_bytes)
    except WireError as error:
        return error.reason
    return None


def read(item):
    """What kombu does with an item before Celery sees it, and with one that it puts back."""
    with Connection("memory://") as connection, connection.channel() as channel:
        raw = loads(item)
        message = channel.Message(raw, channel=channel)
        delivery = message.delivery_info
        dumps([raw, delivery["exchange"], delivery["routing_key"]])
        assert message.delivery_tag.encode()
        assert {message.headers.get("task"): message.headers.get("id")}


def test_our_messages_pass():
    item = orjson.dumps(genuine())
    assert screened(item) is None
    read(item)


@pytest.mark.parametrize("stamps", ["{}", '{"__type__": "datetime", "__value__": "2026-01-01T00:00:00"}', '"\\u005f"'])
def test_what_passes_is_given_as_kombu_would_read_it(stamps):
    """No one reads it twice."""
    item = orjson.dumps(genuine()).replace(b'"stamps":{}', b'"stamps":' + stamps.encode())
    assert screen(item, is_ours=True, own=OWN, others=(), max_bytes=MEGABYTE) == loads(item)


@pytest.mark.parametrize("name", sorted(JUNK.keys() - {name for name, later in JUDGED_LATER.items() if later}))
def test_junk_is_refused(name):
    """Law of design §4: a message that is not ours cannot kill a worker."""
    expected = {
        "ten megabytes of zeros": "too_large",
        "a body of 40 megabytes": "too_large",
        "an unknown compression": "compressed",
        "a compression that is a list": "compressed",
    }
    assert screened(JUNK[name]) == expected.get(name, "malformed")


@pytest.mark.parametrize("name", sorted(name for name, later in JUDGED_LATER.items() if later))
def test_what_kombu_can_read_passes(name):
    assert screened(JUNK[name]) is None
    read(JUNK[name])


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary().map(repr)
typed = {"__type__": "uuid", "__value__": {"hex": "0" * 32}}
values = st.just(typed) | st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)
places = st.sampled_from(
    [
        (),
        ("body",),
        ("headers",),
        ("properties",),
        ("content-type",),
        ("content-encoding",),
        ("headers", "task"),
        ("headers", "id"),
        ("properties", "delivery_tag"),
        ("properties", "delivery_info"),
        ("properties", "delivery_info", "exchange"),
        ("properties", "delivery_info", "routing_key"),
        ("properties", "body_encoding"),
        ("properties", "priority"),
    ]
)


@given(places, values)
def test_whatever_passes_can_be_read(place, value):
    """Law of design §4, on genuine messages with anything at all in one place."""
    message = genuine()
    if place:
        at = message
        for name in place[:-1]:
            at = at[name]
        at[place[-1]] = value
    else:
        message = value
    item = dumps(message).encode()
    if screened(item) is None:
        read(item)


@pytest.mark.parametrize("name", ["__type__", "\\u005f_type__"])
@pytest.mark.parametrize(
    ("told", "value", "reason"),
    [
        ("datetime", "2026-01-01T00:00:00", None),
        ("datetime", "soon", "malformed"),
        ("decimal", "none", "malformed"),
        ("nobody's", 1, "malformed"),
    ],
)
def test_what_kombus_json_makes_values_of_is_read_by_it(name, told, value, reason):
    """An app may send dates in its headers; what kombu cannot make one of would end the worker."""
    typed = b'{"%b": %b, "__value__": %b}' % (name.encode(), orjson.dumps(told), orjson.dumps(value))
    item = orjson.dumps(genuine()).replace(b'"stamps":{}', b'"stamps":' + typed)
    assert screened(item) == reason
    if reason is None:
        read(item)


@pytest.mark.parametrize("number", [b"NaN", b"1" * 30])
def test_what_only_kombus_json_reads_passes(number):
    item = orjson.dumps(genuine()).replace(b'"stamps":{}', b'"stamps":' + number)
    assert screened(item) is None
    read(item)


@pytest.mark.parametrize("depth", [49, 60, 400, 900, 1100])
def test_whatever_depth_passes_can_be_read(depth):
    item = orjson.dumps(genuine()).replace(b'"stamps":{}', b'"stamps":' + b"[" * depth + b"]" * depth)
    assert screened(item) == (None if depth < 50 else "malformed") or depth == 49
    if screened(item) is None:
        read(item)


@pytest.mark.parametrize(
    ("task", "is_ours", "reason"),
    [
        (TASK_ATTEMPT, True, "compressed"),
        (TASK_ATTEMPT, False, "compressed"),
        ("nobody.knows", True, "compressed"),
        ("nobody.knows", False, None),
        (THEIRS, True, None),
        (THEIRS, False, None),
    ],
)
def test_what_is_compressed_is_refused_but_for_an_apps_own_tasks(task, is_ours, reason):
    """Law of design §5: nothing is unpacked before its signature is known; an attached app's messages keep its rules."""
    item = orjson.dumps(bomb(with_header(genuine(), task=task), size=1000))
    assert screened(item, is_ours=is_ours, others={THEIRS, TASK_ATTEMPT}) == reason


@pytest.mark.parametrize(
    ("task", "is_ours", "reason"),
    [(TASK_ATTEMPT, False, "too_large"), (THEIRS, False, None), (THEIRS, True, "too_large")],
)
def test_size_is_bounded_in_our_lists_and_for_our_tasks(task, is_ours, reason):
    item = orjson.dumps(with_header(genuine(), task=task, padding="x" * largest_item(1000)))
    assert screened(item, is_ours=is_ours, max_bytes=1000) == reason
