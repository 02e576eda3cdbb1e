"""Membership in chords is a pure function of run and lanes, and the doorbell a value that survives the journey."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flujo_client.address import AttemptKey
from flujo_client.contract.envelope import TASK_JOIN, JoinSignal
from flujo_client.errors import SerializationError
from flujo_client.transport.chords import NO_LANE, group_of, membership

QUEUE = "flujo.control"
FAR = "a-long-name-of-a-fan-out"

names = st.text("abcdefgh-_.é ", min_size=1, max_size=12)


@st.composite
def nested_lanes(draw):
    """Fan-outs one inside the other, outermost first, some in iterations of loops."""
    lanes, address = {}, ""
    for _ in range(draw(st.integers(1, 5))):
        fan_out = f"{address}/{draw(names)}".removeprefix("/")
        lanes[fan_out] = draw(st.integers(0, 999))
        address = f"{fan_out}/{draw(names)}" + draw(st.sampled_from(["", "/loop#3", "/machine#12/state"]))
    return lanes


def chords(part):
    """The memberships that are nested in one, from the innermost outwards."""
    while part:
        yield part["group_id"], part["group_index"], part["chord"]["options"]["task_id"]
        part = {name: part["chord"]["options"].get(name) for name in part if "group_id" in part["chord"]["options"]}


@given(nested_lanes())
def test_a_member_is_part_of_the_innermost_chord_and_each_join_of_the_next(lanes):
    """M-007: group, lane and join of every fan-out around, from the inside out."""
    expected = [
        (f"chord:run:{fan_out}", lane, f"run:{fan_out}:{fan_out.split('/')[-1]}:join")
        for fan_out, lane in reversed(lanes.items())
    ]
    assert list(chords(membership("run", lanes, queue=QUEUE))) == expected


@given(nested_lanes(), st.randoms())
def test_whoever_publishes_derives_the_same(lanes, random):
    """M-007: lanes that went through Postgres come back in another order."""
    shuffled = list(lanes.items())
    random.shuffle(shuffled)
    assert membership("run", dict(shuffled), queue=QUEUE) == membership("run", lanes, queue=QUEUE)


@given(nested_lanes())
def test_the_body_is_plain_and_small(lanes):
    """It is copied into every message of the fan-out: ids only, and not much of them for each level."""
    part = membership("run_018bcfe56800fd8fac043e70512d", lanes, queue=QUEUE, priority=5)
    text = orjson.dumps(part)
    assert orjson.loads(text) == part
    assert len(text) <= sum(450 + 6 * len(fan_out.encode()) for fan_out in lanes)


def test_outside_fan_outs_there_is_no_chord():
    assert membership("run", {}, queue=QUEUE) == {}


@pytest.mark.parametrize("priority", [None, 0, 7])
def test_a_join_has_its_runs_priority(priority):
    options = membership("run", {"f": 0}, queue=QUEUE, priority=priority)["chord"]["options"]
    assert options["queue"] == QUEUE
    assert options.get("priority") == priority


def test_every_fan_out_of_every_run_has_a_chord_of_its_own():
    assert len({group_of(run, fan_out) for run in ("r1", "r2") for fan_out in ("f", "f/a/f", "loop#1/f")}) == 6


@given(nested_lanes())
def test_a_doorbell_survives_the_journey(lanes):
    join_signal = JoinSignal("run", list(lanes)[-1])
    assert JoinSignal.from_wire(orjson.loads(orjson.dumps(join_signal.to_wire()))) == join_signal
    assert AttemptKey.parse(join_signal.key).kind == "join"


GOOD = JoinSignal("run", f"loop#2/{FAR}").to_wire()


@pytest.mark.parametrize(
    "wire",
    [
        None,
        5,
        [],
        "bell",
        {},
        {**GOOD, "v": 2},
        {**GOOD, "task": "flujo.attempt"},
        {**GOOD, "key": None},
        {**GOOD, "key": "run"},
        {**GOOD, "key": f"run:{FAR}:{FAR}:1"},
        {**GOOD, "key": f"run:{FAR}:{FAR}:start"},
        {**GOOD, "key": f"run:{FAR}:other:join"},
        {name: value for name, value in GOOD.items() if name != "task"},
    ],
    ids=repr,
)
def test_what_is_no_doorbell_is_refused(wire):
    """M-014: a signed body under a swapped header is found out by what it names itself."""
    assert GOOD["task"] == TASK_JOIN
    with pytest.raises(SerializationError):
        JoinSignal.from_wire(wire)


def test_a_branch_without_a_lane_is_no_part_of_any_chord():
    """It paused, and a sibling is that part now; what stands around it is its join's, not its own."""
    assert membership("run", {"f": NO_LANE}, queue=QUEUE) == {}
    assert membership("run", {"f": 1, "f/a/g": NO_LANE}, queue=QUEUE) == {}
    assert membership("run", {"f": NO_LANE, "f/a/g": 1}, queue=QUEUE)["group_index"] == 1
