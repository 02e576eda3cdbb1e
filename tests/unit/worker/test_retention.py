"""When ended runs are deleted, and how many at once."""

import pytest

from flujo_client.config.manager import ConfigManager
from flujo_client.config.models import Retention
from flujo_client.errors import SettingsError
from flujo_worker.domain.retention import DAY_S, retention_rules
from flujo_worker.ports import PrunedUnits
from flujo_worker.recovery.retention import LARGEST, SLOW_S, TURN_S, UNITS, UNITS_S, Pruner, UnitPruner
from tests.support.memory_retention import older_s

A_DAY = Retention(succeeded_days=1)
RULES = retention_rules(A_DAY)


def read(text, tmp_path, monkeypatch):
    (tmp_path / "flujo.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    return ConfigManager().settings().retention


def test_nothing_is_deleted_unless_it_is_configured():
    assert retention_rules(Retention()) == []


def test_a_pipeline_has_days_of_its_own(tmp_path, monkeypatch):
    text = """
        [retention]
        succeeded_days = 30
        failed_days = 90
        [retention.pipeline.audit]
        succeeded_days = 0
        failed_days = 365
    """
    rules = retention_rules(read(text, tmp_path, monkeypatch))
    asked = [("succeeded", "p"), ("failed", "p"), ("cancelled", "p"), ("succeeded", "audit"), ("failed", "audit")]
    assert [older_s(rules, *each) for each in asked] == [30 * DAY_S, 90 * DAY_S, None, None, 365 * DAY_S]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[retention]\nsucceded_days = 3", "succeeded_days"),
        ("[retention]\nsucceeded_days = -1", "retention.succeeded_days"),
        ("[retention.pipeline.'bill-*']\nfailed_days = 3", "patterns"),
    ],
)
def test_what_would_delete_other_runs_than_meant_is_refused(tmp_path, monkeypatch, text, named):
    with pytest.raises(SettingsError, match=named):
        read(text, tmp_path, monkeypatch)


class Shelf:
    """A store with so many runs to delete; each transaction takes some seconds."""

    def __init__(self, runs, *, seconds=0.0, is_turn=True):
        self.runs, self.seconds, self.is_turn = runs, seconds, is_turn
        self.now, self.limits = 0.0, []
        self.searched, self.steps, self.summaries = 0, 0, []

    def begin_pruning(self, every_s):
        return self.is_turn

    def prune_runs(self, rules, limit, *, is_summarized, waits_s):
        assert rules == RULES
        self.is_summarized = is_summarized
        self.now += self.seconds
        self.limits.append(limit)
        gone = min(limit, self.runs)
        self.runs -= gone
        return ["run"] * gone

    def prune_summaries(self, older_s, limit):
        self.summaries.append((older_s, limit))

    def sweep_blobs(self, limit, *, every_s, unused_s):
        assert (every_s, unused_s) == (DAY_S, DAY_S)
        self.searched += 1
        self.now += self.seconds
        return self.searched < self.steps


def pruner(shelf, settings=A_DAY, *, per_minute=6_000, **rest):
    settings = settings.model_copy(update={"runs_per_minute": per_minute, **rest})
    return Pruner(shelf, settings, clock=lambda: shelf.now)


def test_no_more_go_in_a_minute_than_the_settings_say():
    shelf = Shelf(100_000)
    pruning, gone = pruner(shelf, per_minute=1_200), 0
    for _ in range(int(60 / TURN_S)):
        gone += pruning.prune_in_turn()
        assert pruning.prune_in_turn() == 0
        shelf.now += TURN_S
    assert gone == 1_200


@pytest.mark.parametrize("nothing_to_do", [{"succeeded_days": 0}, {"is_turn": False}])
def test_without_rules_or_a_turn_nothing_is_asked(nothing_to_do):
    shelf = Shelf(10, is_turn=nothing_to_do.pop("is_turn", True))
    assert pruner(shelf, **nothing_to_do).prune_in_turn() == 0
    assert shelf.limits == []


def test_a_turn_ends_with_what_there_is_to_delete():
    shelf = Shelf(60)
    assert pruner(shelf).prune_in_turn() == 60
    assert sum(shelf.limits) > 60
    assert len(shelf.limits) == 2


def test_transactions_become_smaller_while_they_are_slow_and_larger_while_they_are_quick():
    shelf = Shelf(100_000, seconds=2 * SLOW_S)
    pruning = pruner(shelf, per_minute=60_000)
    for _ in range(8):
        pruning.prune_in_turn()
        shelf.now += TURN_S
    assert shelf.limits[0] > 10
    assert shelf.limits[-1] == 1
    shelf.seconds = 0.0
    pruning.prune_in_turn()
    assert max(shelf.limits) == LARGEST


def test_what_is_left_of_a_turn_searches_for_unused_values():
    shelf = Shelf(10)
    shelf.steps = 7
    pruner(shelf).prune_in_turn()
    assert shelf.searched == 7


def test_a_turn_is_short_however_much_there_is_to_search():
    shelf = Shelf(0, seconds=0.3)
    shelf.steps = 1_000
    pruner(shelf).prune_in_turn()
    assert shelf.now <= TURN_S / 5 + 0.3


@pytest.mark.parametrize("keep", [True, False])
def test_summaries_stay_if_asked_for_and_for_their_own_time(keep):
    shelf = Shelf(10)
    pruner(shelf, per_minute=1_200, keep_summaries=keep, summary_days=100).prune_in_turn()
    assert shelf.is_summarized is keep
    assert shelf.summaries == [(100 * DAY_S, 200)]


def test_summaries_stay_forever_without_days():
    shelf = Shelf(10)
    pruner(shelf, keep_summaries=True, summary_days=0).prune_in_turn()
    assert shelf.summaries == []


class Places:
    """A store with some places of units; each call deletes what it is told."""

    def __init__(self, *pruned):
        self.pruned, self.asked = list(pruned), []

    def prune_units(self, older_s, after, **rest):
        self.asked.append((older_s, after))
        return self.pruned.pop(0)


def test_units_go_a_few_places_at_a_time_and_full_ones_are_looked_at_again():
    store = Places(
        PrunedUnits(UNITS, ("r1", "p")), PrunedUnits(3, ("r1", "p")), PrunedUnits(0, None), PrunedUnits(0, None)
    )
    pruner = UnitPruner(store, Retention(units_days=2))
    assert [pruner.prune() for _ in range(4)] == [False, False, True, True]
    assert store.asked == [
        (2 * DAY_S, ("", "")),
        (2 * DAY_S, ("", "")),
        (2 * DAY_S, ("r1", "p")),
        (2 * DAY_S, ("", "")),
    ]


def test_units_stay_a_minute_by_default():
    store = Places(PrunedUnits(0, None))
    assert UnitPruner(store, Retention()).prune()
    assert store.asked == [(UNITS_S, ("", ""))]
