"""Circuit breakers in memory and in Redis have the same guarantees (M-463, SYS-19)."""

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from flujo_client.config.manager import Settings
from flujo_client.contract.limits import GuardRow
from flujo_worker.domain.breaker import BreakerReport, Counts
from flujo_worker.domain.called_model import CallReport, ModelPermit
from flujo_worker.guards.cells import MODELS, MemoryCells, RedisCells
from flujo_worker.guards.live import LiveGuards
from flujo_worker.guards.models import CalledModels, ModelAnswer, ModelRequest

RULES = {"failures": 3, "recovery_s": 30.0, "half_open_calls": 2}
MODEL = "acme:large"
OK, BAD = Counts(1), Counts(1, 1)
DATABASE = "postgresql://localhost/none"


def fleet(cells, every=RULES, *rows):
    """The state in these cells, under these settings of every model's breaker."""
    return CalledModels(cells, LiveGuards(lambda: [GuardRow("breaker", "*", every), *rows]))


class Breakers:
    """Asked and told one thing at a time."""

    def __init__(self, cells, every=RULES, *rows):
        self.models = fleet(cells, every, *rows)

    def request_permit(self, model):
        return tuple(self.models.answer([ModelRequest(model)])[0])

    def report(self, model, report):
        return self.models.answer([ModelRequest(model, CallReport(report))])[0].event


def settings_of(url, **rest):
    return Settings.model_validate({"database_url": DATABASE, "broker_url": url, **rest})


class Memory:
    """In memory; its clock is ours."""

    def __init__(self):
        self.now = 1000.0
        self.cells = MemoryCells(MODELS, lambda: self.now)
        self.another = lambda: self.cells

    def pass_time(self, seconds):
        self.now += seconds


class Redis:
    """A real one. Its clock cannot be moved, so time passes by making breakers older."""

    def __init__(self, url):
        self._url = url
        self.cells = RedisCells(MODELS, settings_of(url))

    def another(self):
        """What another process has."""
        return RedisCells(MODELS, settings_of(self._url))

    def pass_time(self, seconds):
        assert self.cells.change(MODEL, lambda model, _: (older(model, seconds), True))


def older(model, seconds):
    breaker, slowdown = model.breaker, model.slowdown
    parts = tuple((number - int(seconds / 6), counts) for number, counts in breaker.parts)
    aged = replace(breaker, until=breaker.until - seconds, probed_at=breaker.probed_at - seconds, parts=parts)
    bucket = replace(
        slowdown.bucket, requests_at=slowdown.bucket.requests_at - seconds, tokens_at=0.0, promised_until=0.0
    )
    return replace(model, breaker=aged, slowdown=replace(slowdown, since=slowdown.since - seconds, bucket=bucket))


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.services)])
def world(request):
    if request.param == "memory":
        yield Memory()
        return
    url = request.getfixturevalue("redis_url")
    with redis.Redis.from_url(url) as client:
        client.flushdb()
    world = Redis(url)
    yield world
    world.cells.close()


@pytest.fixture
def breakers(world):
    return Breakers(world.cells)


def fail(breakers, times, **rest):
    return [breakers.report(MODEL, BreakerReport(BAD, **rest)) for _ in range(times)]


def states(told):
    return [each and each.name.removeprefix("flujo.breaker.") for each in told]


def test_a_model_no_one_has_asked_is_let_through(breakers):
    assert breakers.request_permit(MODEL) == (ModelPermit(turn=0), None)


def test_a_threshold_of_failures_opens_it_for_everybody(world, breakers):
    """SYS-19: the state is shared, and one alone is told that it turned."""
    assert states(fail(breakers, 3)) == [None, None, "opened"]
    permit, turned = Breakers(world.another()).request_permit(MODEL)
    assert (permit.turn, turned) == (None, None)
    assert permit.wait_s == pytest.approx(30, abs=1)


def test_who_opened_it_is_told_why(breakers):
    breakers.report(MODEL, BreakerReport(OK))
    fail(breakers, 1)
    turned = breakers.report(MODEL, BreakerReport(Counts(2, 2, 1), asked_s=90.0))
    assert (turned.name, turned.level) == ("flujo.breaker.opened", "warning")
    assert turned.data == {"model": MODEL, "calls": 4, "failed": 3, "slow": 1, "recovery_s": 90.0}


def test_other_models_continue(breakers):
    fail(breakers, 3)
    assert breakers.request_permit("acme:small")[0] == ModelPermit(turn=0)


def test_recovery_goes_by_probes_and_each_turn_is_told_once(world, breakers):
    """M-463: fail fast for the recovery period, then half open; two probes here, then closed."""
    fail(breakers, 3)
    world.pass_time(31)
    asked = [breakers.request_permit(MODEL) for _ in range(3)]
    assert [permit.turn for permit, _ in asked] == [1, 1, None]
    assert states([turned for _, turned in asked]) == ["half_open", None, None]
    assert states([breakers.report(MODEL, BreakerReport(OK, turn=1)) for _ in range(2)]) == [None, "closed"]
    assert breakers.request_permit(MODEL)[0] == ModelPermit(turn=2)


def test_a_failed_probe_opens_it_again(world, breakers):
    fail(breakers, 3)
    world.pass_time(31)
    breakers.request_permit(MODEL)
    assert states(fail(breakers, 2, turn=1)) == ["opened", None]
    assert breakers.request_permit(MODEL)[0].wait_s == pytest.approx(30, abs=1)


def test_of_many_at_once_as_many_are_let_through_as_may_and_one_is_told(world):
    """Two processes' worth of threads, at one barrier."""
    sides = [Breakers(world.cells), Breakers(world.another())]
    fail(sides[0], 3)
    world.pass_time(31)
    barrier = threading.Barrier(16)

    def ask(number):
        barrier.wait()
        return sides[number % 2].request_permit(MODEL)

    with ThreadPoolExecutor(16) as threads:
        asked = list(threads.map(ask, range(16)))
    assert Counter(permit.turn for permit, _ in asked) == {1: 2, None: 14}
    assert states([turned for _, turned in asked]).count("half_open") == 1


def test_no_failure_of_many_at_once_is_lost(world):
    breakers = Breakers(world.cells, {"failures": 160, "least_calls": 1000})
    with ThreadPoolExecutor(16) as threads:
        turned = list(threads.map(lambda _: breakers.report(MODEL, BreakerReport(BAD)), range(160)))
    assert [each.data["failed"] for each in turned if each] == [160]


REPORTS = st.builds(BreakerReport, st.sampled_from([OK, BAD, Counts()]), st.none() | st.integers(0, 3), st.none())
REQUESTS = st.builds(
    ModelRequest,
    st.sampled_from([MODEL, "acme:small"]),
    st.none() | st.builds(CallReport, REPORTS, st.sampled_from([0, 0, 4]), st.sampled_from([None, 5.0])),
    st.booleans(),
)


@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0, 31.0]), st.lists(REQUESTS, min_size=1, max_size=8)), max_size=8))
def test_many_requests_at_once_are_answered_as_one_after_another(groups):
    together, alone = Memory(), Memory()
    for seconds, requests in groups:
        together.pass_time(seconds)
        alone.pass_time(seconds)
        answers = fleet(together.cells).answer(requests)
        assert answers == [fleet(alone.cells).answer([each])[0] for each in requests]
    for model in (MODEL, "acme:small"):
        kept = [world.cells.change(model, lambda breaker, _: (breaker, breaker)) for world in (together, alone)]
        assert kept[0] == kept[1]


def test_as_many_of_a_group_probe_as_may(world, breakers):
    fail(breakers, 3)
    world.pass_time(31)
    answers = breakers.models.answer([ModelRequest(MODEL)] * 9)
    assert Counter(each.permit.turn for each in answers) == {1: 2, None: 7}
    assert states([each.event for each in answers]) == ["half_open", *[None] * 8]


def test_a_group_changes_each_breaker_once(monkeypatch):
    cells, changed = MemoryCells(MODELS, lambda: 1000.0), []
    change = cells.change
    monkeypatch.setattr(cells, "change", lambda name, act: changed.append(name) or change(name, act))
    requests = [ModelRequest(MODEL), ModelRequest("acme:small"), ModelRequest(MODEL, CallReport(BreakerReport(OK)))]
    fleet(cells).answer(requests * 20)
    assert sorted(changed) == [MODEL, "acme:small"]


@pytest.mark.services
def test_keys_have_our_prefix_and_an_end(redis_url):
    cells = RedisCells(MODELS, settings_of(redis_url, broker_key_prefix="shop:"))
    Breakers(cells).report(MODEL, BreakerReport(BAD, asked_s=600.0))
    with redis.Redis.from_url(redis_url) as client:
        assert 4100 < client.ttl(f"shop:{MODELS.key}{MODEL}") <= 4200


@pytest.mark.services
def test_asking_a_closed_breaker_writes_nothing(redis_url):
    with redis.Redis.from_url(redis_url) as client:
        client.flushdb()
        Breakers(RedisCells(MODELS, settings_of(redis_url))).request_permit(MODEL)
        assert client.keys(f"{MODELS.key}*") == []


@pytest.mark.services
@pytest.mark.parametrize("kept", [b"", b"no breaker", b"[]", b'{"state": "ajar"}', b'{"until": "soon"}', b"\xff"])
def test_what_is_no_breaker_counts_as_closed_and_is_overwritten(redis_url, kept):
    with redis.Redis.from_url(redis_url) as client:
        client.set(f"{MODELS.key}{MODEL}", kept)
    breakers = Breakers(RedisCells(MODELS, settings_of(redis_url)))
    assert breakers.request_permit(MODEL)[0] == ModelPermit(turn=0)
    assert states(fail(breakers, 3))[-1] == "opened"


def test_without_redis_every_breaker_is_closed_and_no_one_waits_for_it():
    """An attempt is never held back, failed or slowed down because Redis is away."""
    models = fleet(RedisCells(MODELS, settings_of("redis://127.0.0.1:1/0")))
    began = time.monotonic()
    for _ in range(100):
        asked = [ModelRequest(MODEL), ModelRequest(MODEL, CallReport(BreakerReport(BAD)))]
        assert models.answer(asked) == [ModelAnswer()] * 2
    assert time.monotonic() - began < 20


@pytest.mark.services
def test_it_is_asked_again_once_redis_is_back(redis_url, monkeypatch):
    cells = RedisCells(MODELS, settings_of(redis_url))
    monkeypatch.setattr("flujo_worker.guards.cells.AWAY_S", 0.0)
    monkeypatch.setattr(cells, "_read", lost)
    assert cells.change(MODEL, lambda breaker, _: (breaker, breaker)) is None
    monkeypatch.undo()
    assert cells.change(MODEL, lambda breaker, _: (breaker, breaker)) is not None


def lost(key):
    raise redis.ConnectionError("gone")


def test_turned_off_a_breaker_is_not_asked(world, breakers):
    fail(breakers, 3)
    off = GuardRow("breaker", MODEL, edits={"enabled": False})
    assert Breakers(world.cells, RULES, off).request_permit(MODEL) == (ModelPermit(), None)
    assert breakers.request_permit(MODEL)[0].waits_for == "breaker"


def test_an_operator_closes_a_breaker_once(world, breakers):
    """The request is a row that stays: a breaker that opens after it stays open."""
    fail(breakers, 3)
    closing = Breakers(world.another(), RULES, GuardRow("breaker", "acme:*", cleared_at=1000.0))
    permit, told = closing.request_permit(MODEL)
    assert (permit, told.name, told.data) == (
        ModelPermit(turn=2),
        "flujo.breaker.closed",
        {"model": MODEL, "by": "operator"},
    )
    fail(closing, 3)
    assert closing.request_permit(MODEL)[0].waits_for == "breaker"


def refuse(world, times, asked_s=20.0, rows=()):
    models = fleet(world.cells, RULES, *rows)
    report = CallReport(BreakerReport(Counts(), 0), 1, asked_s)
    return [models.answer([ModelRequest(MODEL, report)])[0].event for _ in range(times)]


def test_refused_calls_slow_a_model_down_for_everybody_and_open_no_breaker(world):
    """C-48: one alone changes nothing."""
    others = fleet(world.another())
    told = [each for each in refuse(world, 5) if each]
    assert (told, others.answer([ModelRequest(MODEL)])[0].permit) == ([], ModelPermit(turn=0))
    [told] = refuse(world, 1)
    assert (told.name, told.data["model"], told.data["wait_s"]) == (
        "flujo.rate.slowed",
        MODEL,
        pytest.approx(20, abs=1),
    )
    permit = others.answer([ModelRequest(MODEL)])[0].permit
    assert (permit.waits_for, permit.wait_s) == ("rate", pytest.approx(21, abs=3))
    assert others.answer([ModelRequest("acme:small")])[0].permit == ModelPermit(turn=0)


def test_a_slowed_model_becomes_faster_and_is_forgotten(world):
    refuse(world, 6)
    world.pass_time(30)
    answers = fleet(world.cells).answer([ModelRequest(MODEL, has_waited=True)] * 10)
    assert 1 <= sum(each.permit.waits_for is None for each in answers) < 10
    world.pass_time(200)
    answers = fleet(world.cells).answer([ModelRequest(MODEL)] * 50)
    assert {each.permit for each in answers} == {ModelPermit(turn=0)}


def test_an_operator_ends_a_slow_down(world):
    refuse(world, 6)
    cleared = GuardRow("rate", MODEL, cleared_at=1000.0)
    assert fleet(world.another(), RULES, cleared).answer([ModelRequest(MODEL)])[0].permit == ModelPermit(turn=0)
    refuse(world, 6, rows=[cleared])
    assert fleet(world.cells, RULES, cleared).answer([ModelRequest(MODEL)])[0].permit.waits_for == "rate"
