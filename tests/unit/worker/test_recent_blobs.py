"""Blobs that a process remembers: the newest, within a bound."""

import random

from flujo_client.serial import Packed, part_key, stored_apart
from flujo_worker.store.postgres.blobs import Recent

MOST = 8_000


def blob(number, size=1_000):
    return Packed(b"j" + f'"{random.Random(number).randbytes(size // 2).hex()}"'.encode())


def test_what_was_added_is_found_by_its_digest():
    recent, one, other = Recent(MOST), blob(1), blob(2)
    recent.add([one, other])
    assert recent.find([one.digest, "unknown"]) == {one.digest: one}


def test_the_least_recently_used_is_forgotten_first():
    recent, blobs = Recent(MOST), [blob(number) for number in range(7)]
    recent.add(blobs)
    recent.find([blobs[0].digest])
    recent.add([blob(8)])
    found = recent.find([each.digest for each in blobs])
    assert blobs[0].digest in found
    assert blobs[1].digest not in found


def test_what_is_kept_never_exceeds_the_bound():
    recent, blobs = Recent(MOST), [blob(number, 200 + 137 * number % 1_500) for number in range(50)]
    for each in blobs:
        recent.add([each, each])
        assert sum(found.size for found in recent.find([every.digest for every in blobs]).values()) <= MOST


def test_one_that_would_push_out_most_others_is_not_kept():
    recent, small, large = Recent(MOST), blob(1), blob(2, 4_000)
    recent.add([small, large])
    assert recent.find([small.digest, large.digest]) == {small.digest: small}


def versions(count):
    """Versions of one large value, of which little changes."""
    text, before = random.Random(1).randbytes(150_000).hex(), None
    for number in range(count):
        before = Packed.of({"text": text, "count": number}, like=(before,))
        yield before


def test_a_part_of_many_values_is_held_once_and_as_long_as_one_of_them_is():
    recent, values = Recent(2_000_000), list(versions(30))
    recent.add(values)
    assert set(recent.find([each.digest for each in values])) == {each.digest for each in values}
    recent.add(Packed.of({"text": random.Random(number).randbytes(140_000).hex()}) for number in range(10))
    parts = {key for each in values for key in stored_apart(each)}
    assert not recent.find([each.digest for each in values])
    assert not recent.find_parts(parts)


def test_a_part_is_forgotten_with_the_last_value_that_has_it():
    recent, [first, second] = Recent(4_000), [Packed.of_parts([blob(1, 600), blob(each, 300)]) for each in (2, 3)]
    recent.add([first, second])
    recent.find([second.digest])
    recent.add([blob(number, 980) for number in (4, 5, 6)])
    assert not recent.find([first.digest])
    assert set(recent.find_parts([part_key(blob(1, 600)), part_key(blob(2, 300))])) == {part_key(blob(1, 600))}
