"""What a sweep does besides what the stores promise."""

import sys
import threading
from types import SimpleNamespace

import pytest

from flujo_client.config.models import TemplateSettings
from flujo_client.plan.plan import Backoff
from flujo_worker.changed_code.code_registry import CodeRegistry
from flujo_worker.coordinator.coordinator import Coordinator
from flujo_worker.ports import ClaimId
from flujo_worker.recovery.lost_work import JOIN_OVERDUE_BEHIND_S, JOIN_OVERDUE_S
from flujo_worker.store.memory.backlog import BacklogInMemory
from flujo_worker.store.memory.budgets import BudgetsInMemory
from flujo_worker.store.memory.scopes import ScopesInMemory
from flujo_worker.store.memory.tables import Tables
from flujo_worker.user_code.evaluator import Evaluator
from tests.support.builders import enqueued, member
from tests.support.memory import AllInMemory
from tests.support.sweeping import Standing, sweeper_of

NO_CODE = SimpleNamespace(template=TemplateSettings())
"""Where user code would run: none does here."""


class Post:
    """A broker that is there, and whose queues are empty."""

    def send(self, envelopes):
        raise AssertionError(f"nothing is due, but {envelopes} went out")

    def epoch(self):
        return "first"

    def heads(self, queues):
        return dict.fromkeys(queues)


def test_code_that_cannot_be_loaded_is_tried_once_in_a_sweep(tmp_path, monkeypatch):
    """However many runs are parked for it: an import that fails may have loaded half the world before."""
    tried = tmp_path / "tried"
    (tmp_path / "shapes.py").write_text(f"print('tried', file=open({str(tried)!r}, 'a'))\nraise OSError('no model')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "shapes", raising=False)
    stores = AllInMemory(Tables(lambda: 1_800_000_000.0))
    stores.leases.register_worker(member("w"), 30.0)
    for _ in range(3):
        new = enqueued()
        stores.client.record(new)
        stores.plan_moves.park(
            ClaimId(new.first.key, stores.attempts.claim(new.first.key, "w", max_lost=3).fence), "no such code here"
        )
    catalog = CodeRegistry(["shapes"], lambda _: None)
    coordinator = Coordinator(stores, lambda *_: None, Evaluator(stores, catalog, NO_CODE), backoff=Backoff())
    sweeper = sweeper_of(stores, Post(), coordinator, catalog)
    assert sweeper.sweep() == 0
    assert tried.read_text() == "tried\n"
    assert len(stores.plan_moves.parked(10)) == 3


def test_a_bell_that_may_wait_in_its_queue_is_given_longer():
    """SYS-13: a backlog is no reason to ring again; a queue that never empties is no reason not to."""
    asked = []

    class Backed(Post):
        head = None

        def heads(self, queues):
            return dict.fromkeys(queues, self.head)

    class Scopes(ScopesInMemory):
        def missed_joins(self, limit, older_s):
            asked.append(older_s)
            return super().missed_joins(limit, older_s)

    tables = Tables(lambda: 1_800_000_000.0)
    stores, post, catalog = AllInMemory(tables), Backed(), CodeRegistry([], lambda _: None)
    stores.scopes = Scopes(tables)
    coordinator = Coordinator(stores, lambda *_: None, Evaluator(stores, catalog, NO_CODE), backoff=Backoff())
    sweeper = sweeper_of(stores, post, coordinator, catalog)
    sweeper.sweep()
    post.head = 0.0
    sweeper.sweep()
    assert asked == [JOIN_OVERDUE_S, JOIN_OVERDUE_BEHIND_S]


@pytest.mark.parametrize(("may_judge", "sweeps"), [(True, True), (False, False)])
def test_one_who_may_not_judge_leaves_the_turn_to_those_who_may(may_judge, sweeps):
    """A newcomer that took every turn would have a dead worker's attempts wait for a second lease (law of design §5)."""
    asked = threading.Event()

    class Backlog(BacklogInMemory):
        def begin_sweep(self, worker, every_s):
            took.append(super().begin_sweep(worker, every_s))
            asked.set()
            return False

    took, now = [], 1_800_000_000.0
    tables = Tables(lambda: now)
    stores, catalog = AllInMemory(tables), CodeRegistry([], lambda _: None)
    stores.backlog.begin_sweep("another", 0.0)
    stores.backlog = Backlog(tables, BudgetsInMemory(tables))
    now += 0.015
    coordinator = Coordinator(stores, lambda *_: None, Evaluator(stores, catalog, NO_CODE), backoff=Backoff())
    sweeper = sweeper_of(stores, Post(), coordinator, catalog, lease=Standing(may_judge=may_judge), every_s=0.01)
    sweeper.start()
    assert asked.wait(60)
    sweeper.stop()
    assert took[0] is sweeps
