"""Sweeps over rows that a worker is working on, in every store."""

from types import SimpleNamespace

import pytest
from trees import FAN, closing, fanned_out

from flujo_client.config.models import TemplateSettings
from flujo_client.plan.plan import Backoff
from flujo_worker.changed_code.code_registry import CodeRegistry
from flujo_worker.coordinator.coordinator import Coordinator
from flujo_worker.recovery.lost_work import JOIN_OVERDUE_S
from flujo_worker.user_code.evaluator import Evaluator
from tests.support.builders import enqueued
from tests.support.sweeping import Standing, sweeper_of


class Post:
    """A broker that is there and empty: no one takes what goes out."""

    def __init__(self):
        self.sent = []

    def send(self, envelopes, *, first=False):
        self.sent += [(envelope.key, first) for envelope in envelopes]

    def epoch(self):
        return "first"

    def heads(self, queues):
        return dict.fromkeys(queues)


@pytest.fixture
def post():
    return Post()


@pytest.fixture
def sweeper(world, post):
    catalog = CodeRegistry([], world.stores.code.plan)
    coordinator = Coordinator(
        world.stores,
        lambda *_: None,
        Evaluator(world.stores, catalog, SimpleNamespace(template=TemplateSettings())),
        backoff=Backoff(),
    )
    return sweeper_of(world.stores, post, coordinator, catalog, lease=Standing("w1"))


def rung_by(world, run):
    return [event.data["by"] for event in world.events(run) if event.name == "join.rung"]


def test_the_bell_of_an_aborted_fan_out_is_left_to_who_aborted_it(world, sweeper):
    """SYS-13: that worker has committed and is about to ring; the sweeper closes what is left, and rings if no one has in time."""
    arms = fanned_out(world, 2)
    run = arms[0].ticket.run
    assert world.commit(closing(arms[0], fence=world.claim(arms[0]), status="failed", aborts=True)) == "merged"
    sweeper.sweep()
    assert [row.status for row in world.stores.scopes.children(run, FAN)] == ["failed", "cancelled"]
    assert rung_by(world, run) == []
    world.pass_time(JOIN_OVERDUE_S + 1)
    sweeper.sweep()
    assert rung_by(world, run) == ["sweeper"]


def test_a_lost_attempt_goes_to_the_front_of_its_queue_because_it_has_waited_for_its_turn(world, sweeper, post):
    world.register_worker("gone", lease_s=5.0)
    lost, due = world.record(enqueued()).first, world.record(enqueued()).first
    world.claim(lost, worker="gone")
    world.pass_time(10)
    sweeper.sweep()
    assert post.sent == [(lost.key, True), (due.key, False)]
