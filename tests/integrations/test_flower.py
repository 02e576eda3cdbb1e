"""What Flower and `celery inspect` see of workers, with an app that knows nothing of Flujo."""

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.integrations, pytest.mark.services, pytest.mark.acceptance]


@pytest.fixture(scope="module")
def two(site):
    """Two processes of `flujo worker` on one host."""
    yield site.workers(2, arguments=("--pool", "attempts", "--concurrency", "3"))
    site.dismiss()


def celery(site, *arguments):
    """Run Celery's command line with an app that it makes itself, which writes JSON."""
    command = [sys.executable, "-m", "celery", "--quiet", "--broker", site.settings.broker(), *arguments, "--json"]
    return subprocess.run([*command, "--timeout", "5"], capture_output=True, text=True, check=False, timeout=60)


def test_celery_inspect_reaches_all_workers_or_one(site, two):
    answers = json.loads(celery(site, "inspect", "ping").stdout)
    assert len(answers) == 2
    [name, _] = sorted(answers)
    assert json.loads(celery(site, "inspect", "ping", "--destination", name).stdout) == {name: {"ok": "pong"}}
