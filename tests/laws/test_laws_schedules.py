"""Laws of slots: each moment that a timing names comes once, in order, over clock changes; and of what fires: bounded, in order, once (ADR 60).

A zone's clock is asked minute by minute what it shows: a different way than that of the code.
"""

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flujo_client import Schedule
from flujo_client.contract.schedules import MOST_CAUGHT_UP, ScheduleRecord, Timing, due_at
from flujo_client.errors import ConfigurationError
from flujo_worker.domain.schedules import DueSchedule, due_slots
from tests.support.breadth import examples

lawful = settings(max_examples=examples(60), deadline=None, database=None)
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
CHANGES = {
    "Europe/Berlin": ("2026-03-28", "2026-10-24"),
    "America/New_York": ("2026-03-07", "2026-10-31"),
    "Australia/Lord_Howe": ("2026-04-03", "2026-10-02"),
}
"""The days before the clocks of each zone change; those of Lord Howe by half an hour."""
eves = st.sampled_from(
    [(zone, datetime.fromisoformat(f"{day}T00:00Z")) for zone, days in CHANGES.items() for day in days]
)
minutes = st.sampled_from(["0", "30", "15,45", "59", "1-3"])
hours = st.sampled_from(["1", "2", "3", "0,2", "1-3", "23"])
repeating = st.one_of(
    st.builds("{} {} * * *".format, st.sampled_from(["*", "*/15", "*/20", "*/7"]), st.one_of(hours, st.just("*"))),
    st.builds("{} {} * * *".format, minutes, st.sampled_from(["*", "*/2"])),
)
certain = st.builds("{} {} * * *".format, minutes, hours)
intervals = st.builds(lambda every_s: Timing(every_s=every_s), st.integers(1, 100_000))


def between(timing, start, end):
    slots = []
    for slot in timing.slots(start):
        if slot > end:
            return slots
        slots.append(slot)
    return slots


def numbers(field, most):
    """The numbers that a field names; those above are all that the lines here have."""
    first, _, step = field.partition("/")
    if first == "*":
        return set(range(0, most, int(step or 1)))
    spans = [part.split("-") for part in first.split(",")]
    return {n for span in spans for n in range(int(span[0]), int(span[-1]) + 1)}


def shown(line, zone, start, end):
    """Each minute at which the clock shows a time of the line, with that time."""
    minute, hour = line.split()[:2]
    of_minute, of_hour = numbers(minute, 60), numbers(hour, 24)
    at = start + MINUTE
    while at <= end:
        local = at.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
        if local.minute in of_minute and local.hour in of_hour:
            yield at, local
        at += MINUTE


@given(eves, repeating)
@lawful
def test_a_line_that_repeats_fires_whenever_the_clock_shows_its_time(eve, line):
    zone, day = eve
    timing = Timing(cron=line, zone=zone)
    assert between(timing, day, day + 3 * DAY) == [at for at, _ in shown(line, zone, day, day + 3 * DAY)]


@given(eves, certain)
@lawful
def test_a_line_of_certain_times_fires_once_for_each_the_first_time_or_when_the_clock_has_changed(eve, line):
    zone, day = eve
    first = {}
    for at, local in shown(line, zone, day, day + 3 * DAY):
        first.setdefault(local, at)
    slots = between(Timing(cron=line, zone=zone), day, day + 3 * DAY)
    assert [slot for slot in slots if slot in first.values()] == list(first.values())
    for slot in set(slots) - set(first.values()):  # the clock was just set forward, over a time of the line
        before, after = ((slot - n * timedelta(seconds=1)).astimezone(ZoneInfo(zone)) for n in (1, 0))
        skipped = [before.replace(tzinfo=None) + n * MINUTE for n in range(120)]
        minute, hour = line.split()[:2]
        assert after.utcoffset() > before.utcoffset()
        assert any(
            each.minute in numbers(minute, 60) and each.hour in numbers(hour, 24)
            for each in skipped
            if each < after.replace(tzinfo=None)
        )


@given(
    st.one_of(
        intervals, st.builds(lambda line, eve: Timing(cron=line, zone=eve[0]), st.one_of(repeating, certain), eves)
    ),
    eves,
    st.integers(0, 3 * 86_400),
)
@lawful
def test_the_next_slot_depends_on_the_moment_alone(timing, eve, seconds):
    """Whoever asks later, or again from a slot, gets the rest of the same slots; the newest are the last of them."""
    _, start = eve
    slots = list(islice(timing.slots(start), 50))
    assert all(slot < later for slot, later in pairwise([start, *slots]))
    moment = min(start + timedelta(seconds=seconds), slots[-2])
    assert timing.after(moment) == next(slot for slot in slots if slot > moment)
    assert timing.newest(start, slots[-1], 7) == slots[-7:]
    assert timing.newest(slots[9], slots[19], 100) == slots[10:20]


@given(st.integers(2, 3600), st.floats(0, 0.999), st.text("abc", min_size=1, max_size=9))
@lawful
def test_jitter_delays_slots_within_its_bound_and_keeps_their_order(every_s, share, name):
    timing = Timing(every_s=every_s, jitter_s=share * every_s)
    slots = list(islice(timing.slots(datetime(2026, 1, 1, tzinfo=UTC)), 30))
    due = [due_at(name, slot, timing) for slot in slots]
    assert due == sorted(due)
    assert all(slot <= at <= slot + timedelta(seconds=timing.jitter_s) for slot, at in zip(slots, due, strict=True))


@given(
    st.sampled_from(["none", "last", "all"]),
    st.sampled_from([5, 60, 900]),
    st.integers(0, 4),
    st.lists(st.integers(-20_000, 200_000), min_size=1, max_size=8),
)
@lawful
def test_sweeps_at_any_moments_fire_each_slot_once_in_order_and_a_bounded_number_at_once(
    policy, every_s, jitter_s, jumps
):
    timing = Timing(every_s=every_s, jitter_s=float(jitter_s))
    now = start = datetime(2026, 5, 1, 12, tzinfo=UTC)
    slot, fired = timing.after(now), []
    for jump in jumps:
        now = max(now + timedelta(seconds=jump), start)
        record = ScheduleRecord("s", "m:p", timing, "", "allow", policy, False, slot, due_at("s", slot, timing))
        if record.due_at > now:
            continue
        found = due_slots(DueSchedule(record, "", b"", now))
        late = [each for each in found.slots if now - due_at("s", each, timing) >= MINUTE]
        assert len(found.slots) <= MOST_CAUGHT_UP
        assert len(late) <= {"none": 0, "last": 1, "all": MOST_CAUGHT_UP}[policy]
        assert now < due_at("s", found.following, timing)
        if policy == "all":
            missed = between(timing, slot - timedelta(seconds=1), found.following - timedelta(seconds=1))
            assert list(found.slots) == missed[-MOST_CAUGHT_UP:]
        fired, slot = [*fired, *found.slots], found.following
    assert fired == sorted(set(fired))


@given(intervals, st.integers(0, 10**6))
@lawful
def test_nothing_fires_after_until(timing, seconds):
    start = datetime(2026, 1, 1, tzinfo=UTC)
    until = start + timedelta(seconds=seconds)
    bounded = Timing(every_s=timing.every_s, until=until)
    expected = [slot for slot in islice(timing.slots(start), 30) if slot <= until]
    assert list(islice(bounded.slots(start), 30)) == expected


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"cron": "0 0 30 2 *"}, "never fires"),
        ({"cron": "0 0 31 4,6 *"}, "never fires"),
        ({"cron": "* * */20 * 1L"}, "never fires"),
        ({"cron": "61 * * * *"}, "is malformed: Bad minute"),
        ({"cron": "0 0 1 13 *"}, "is malformed: Bad month"),
        ({"cron": "@daily"}, "five fields: minute, hour, day of the month"),
        ({"cron": "* * * * * *"}, "got 6"),
        ({"cron": "1" * 500}, "got 1"),
        ({"cron": "0 0 * * *", "zone": "Europe/Atlantis"}, "zone 'Europe/Atlantis' does not exist"),
        ({"cron": "0 0 * * *", "zone": "../etc/passwd"}, "does not exist"),
        ({"cron": "0 * * * *", "jitter_s": 3600.0}, "less than the 3600 s between two slots"),
        ({"every_s": 60, "jitter_s": 61.0}, "less than the 60 s between two slots"),
        ({"every_s": 60, "jitter_s": float("nan")}, "jitter_s must be"),
        ({"every_s": 0}, "every_s must be a whole number"),
        ({"every_s": 1.5}, "every_s must be a whole number"),
        ({"every_s": 10**12}, "every_s must be a whole number"),
        ({}, "give either `cron` or `every_s`"),
        ({"cron": "* * * * *", "every_s": 5}, "give either `cron` or `every_s`"),
        ({"every_s": 5, "until": datetime.fromisoformat("2030-01-01")}, "has no UTC offset"),
        ({"every_s": 5, "until": "soon"}, "must be a time such as"),
        ({"every_s": 5, "overlap": "skipp"}, "overlap must be one of"),
        ({"every_s": 5, "catch_up": "some"}, "catch_up must be one of"),
        ({"every_s": 5, "options": {"priorty": 2}}, "did you mean 'priority'"),
        ({"every_s": 5, "name": "a.b"}, "the name of schedule 'a.b'"),
        ({"every_s": 5, "name": ""}, "the name of schedule ''"),
        ({"every_s": 5, "jitter_s": "9"}, "jitter_s must be of type int | float, got '9'"),
        ({"every_s": 5, "until": 2030}, "until must be of type datetime.datetime | str | None, got 2030"),
        ({"cron": 5}, "cron must be of type str | None, got 5"),
        ({"every_s": 5, "options": ["priority"]}, "options must be of type Mapping, got ['priority']"),
    ],
)
def test_what_cannot_be_is_refused_by_name(given, said):
    with pytest.raises(ConfigurationError, match="schedule '") as refused:
        Schedule(**{"name": "nightly", "pipeline": "m:p"} | given)
    assert said in refused.value.message
    assert given.get("name", "nightly") in refused.value.message
