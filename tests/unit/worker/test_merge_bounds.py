"""How long merging takes: medians of some runs on one core, printed with `-s` (M-286, C-45)."""

from statistics import median
from time import process_time
from timeit import repeat

import pytest

from flujo_client.contract.context import PipelineContext
from flujo_client.serial import dumps, encode, loads
from flujo_worker.domain.merge import merge
from flujo_worker.domain.patch import diff

pytestmark = pytest.mark.large


def timings(act, times):
    """Milliseconds of processor time of each run, without the garbage collector, as `timeit` does it."""
    return [taken * 1e3 for taken in repeat(act, number=1, repeat=times, timer=process_time)]


def timed(what, act):
    taken = median(timings(act, 5))
    print(f"\n{what}: {taken:.1f} ms")
    return taken


def megabyte():
    """A context of 1 000 fields of 1 KB each, as it comes out of a message."""
    tree = loads(dumps(encode(PipelineContext(**{f"f{n}": {"n": 0, "text": "x" * 980} for n in range(1000)}))))
    assert 1_000_000 < len(dumps(tree)) < 1_100_000
    return tree


def changed(base, names, change):
    """The patch of a branch that changed these fields."""
    extra = {name: {**base["x"][name], **change} for name in names}
    return diff(base, {**base, "x": {**base["x"], **extra}})


def test_a_thousand_patches_into_a_megabyte():
    """Issue 3: under 250 ms."""
    base = megabyte()
    patches = [(f"b{lane}", changed(base, ["f0", f"f{lane}"], {"n": 1, f"r{lane}": ["r"]})) for lane in range(1000)]
    merged = merge(base, patches, strategy="context_update")
    assert (merged["x"]["f0"]["n"], merged["x"]["f9"]["r9"], len(merged["x"]["f0"])) == (1000, ["r"], 1002)
    assert timed("1 000 patches into 1 MB", lambda: merge(base, patches, strategy="context_update")) < 250


@pytest.mark.parametrize("apart", [50, 0], ids=["fields of their own", "the same fields"])
def test_ten_branches_of_fifty_fields_each(apart):
    """M-286: under 100 ms."""
    base = megabyte()
    patches = [
        (str(lane), changed(base, [f"f{lane * apart + n}" for n in range(50)], {"n": 3, f"r{lane}": "r"}))
        for lane in range(10)
    ]
    assert timed("10 x 50 fields into 1 MB", lambda: merge(base, patches, strategy="context_update")) < 100


def test_finding_what_changed_in_a_megabyte():
    base, other = megabyte(), megabyte()
    other["x"]["f7"]["n"] = 1
    assert timed("diff of 1 MB", lambda: diff(base, other)) < 100


GROWTHS = {
    "fields": lambda lane: {f"f{lane}-{n}": n for n in range(4)},
    "one list": lambda lane: {"l": [lane]},
    "one set": lambda lane: {"s": {lane}},
    "one counter": lambda lane: {"n": lane + 1},
    "new mappings": lambda lane: {"m": {f"k{lane}": {"n": lane}}},
    "new lists": lambda lane: {"new": [lane]},
}


@pytest.mark.parametrize("growth", GROWTHS)
def test_the_time_grows_with_what_changed_and_no_faster(growth):
    """M-286: merging all at once takes as long as merging them in eight parts; eight times as long if it were quadratic."""
    base = {"l": [], "s": set(), "n": 0}
    before = encode(base)
    patches = [(str(lane), diff(before, encode({**base, **GROWTHS[growth](lane)}))) for lane in range(4000)]
    parts = [patches[start : start + 500] for start in range(0, 4000, 500)]

    def merging(*groups):
        [taken] = timings(lambda: [merge(before, group, strategy="context_update") for group in groups], 1)
        return taken

    ratios = [merging(patches) / merging(*parts) for _ in range(7)]
    print(f"\n{growth}: {median(ratios):.2f} times as long")
    assert median(ratios) < 3


def test_an_iteration_over_a_hundred_kilobytes_copies_and_merges_in_a_tenth_of_a_short_model_call():
    """M-286: a hundred iterations spend less than 10 % of the time on it, if each takes a tenth of a second."""
    tree = loads(dumps(encode(PipelineContext(**{f"f{n}": {"n": 0, "text": "x" * 980} for n in range(100)}))))

    def iteration():
        received = loads(dumps(tree))
        change = diff(received, {**received, "x": {**received["x"], "f7": {"n": 1}}})
        merge(received, [("", change)], strategy="context_update")

    taken = median(timings(iteration, 100))
    print(f"\nan iteration over 100 KB: {taken:.2f} ms")
    assert taken < 10
