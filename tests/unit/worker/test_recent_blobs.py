"""Blobs that a process remembers: the newest, within a bound."""

from __future__ import annotations

import random

from flujo_client.serial import Packed
from flujo_worker.store.blob_cache import Recent

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
