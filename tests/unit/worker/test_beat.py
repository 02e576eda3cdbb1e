"""What beat sends, and how often (M-012)."""

from celery import Celery
from celery.beat import Scheduler

from flujo_client.config.manager import ConfigManager
from flujo_client.contract.envelope import TASK_HEALTH_CHECK, TASK_SWEEP
from flujo_worker.cli.beat import schedule


def settings(**variables):
    return ConfigManager(environ=variables).settings()


def test_the_schedule_has_the_health_check_as_often_as_settings_say():
    """On the control queue; and a check that no one took before the next one is dropped."""
    made = schedule(settings(FLUJO_HEALTH_EVERY_S="900", FLUJO_WORKER_CONTROL_QUEUE="acme.control"))
    assert made.keys() == {TASK_SWEEP, TASK_HEALTH_CHECK}
    entry = made[TASK_HEALTH_CHECK]
    assert (entry["task"], entry["schedule"]) == ("flujo.health_check", 900.0)
    assert (entry["options"]["queue"], entry["options"]["expires"]) == ("acme.control", 900.0)


def test_celery_takes_the_schedule_as_it_is():
    app = Celery("toys", set_as_current=False)
    app.conf.beat_schedule = schedule(settings())
    entries = Scheduler(app).get_schedule()
    assert entries[TASK_HEALTH_CHECK].schedule.run_every.total_seconds() == 300
