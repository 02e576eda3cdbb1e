"""What a worker imports before its first attempt, and what its help and its parent import: few modules, so that it starts quickly."""

import json
import os
import subprocess
import sys

import pytest
from celery.concurrency import get_available_pool_names

from flujo_worker.cli.worker import POOLS

pytestmark = pytest.mark.processes

LATE = ["attr", "jsonschema_rs", "pydantic_ai", "pygments", "rich"]
"""What a pipeline may need, or nobody: an idle worker has none of it."""
OURS_LATE = [
    "flujo_client.embedded",
    "flujo_client.health",
    "flujo_client.blueprint",
    "flujo_client.contract.recipes",
    "flujo_client.contract.run_filter",
    "flujo_worker.agents.recipes",
    "flujo_worker.aros",
    "flujo_worker.chaos",
    "flujo_worker.processes",
    "flujo_worker.replay",
    "flujo_worker.testing",
]
IDLE = """
from flujo_worker.cli.worker import import_serving
import_serving()
import flujo_worker.engine.host
"""


def modules_of(code):
    """What is imported after this code, in a Python of its own."""
    listed = "import json, sys; print(json.dumps(sorted(sys.modules)))"
    without = {**os.environ, "PYDANTIC_DISABLE_PLUGINS": "__all__"}  # those of other packages, such as Logfire's
    done = subprocess.run([sys.executable, "-c", f"{code}\n{listed}"], env=without, capture_output=True, check=True)
    return json.loads(done.stdout)


def ours(modules):
    return [each for each in modules if each.startswith("flujo_")]


def test_an_idle_worker_has_imported_what_an_attempt_needs_and_nothing_else():
    modules = modules_of(IDLE)
    assert not {*LATE, *OURS_LATE} & {*modules}
    assert len(ours(modules)) <= 305
    of_redis = "opentelemetry"  # which redis-py imports where it is installed
    assert len([each for each in modules if each.partition(".")[0] != of_redis]) <= 1001


def test_plugins_of_pydantic_that_need_rich_are_loaded():
    """Logfire's is one, and is installed for tests: if it cannot be loaded, pydantic warns."""
    code = "from flujo_worker.cli.worker import import_serving; import_serving()"
    subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", code], check=True)


def test_rich_can_be_imported_in_a_worker():
    assert "rich.console" in modules_of(f"{IDLE}\nimport rich.console")


def test_the_help_and_the_parent_of_a_worker_import_neither_celery_nor_settings():
    modules = modules_of("import flujo_worker.cli.worker")
    assert not {"celery", "kombu", "pydantic", "rich"} & {*modules}
    assert len(ours(modules)) <= 20


def test_the_pools_of_the_command_are_celerys_without_those_that_patch_python():
    unpatched = [name for name in get_available_pool_names() if name not in ("eventlet", "gevent")]
    assert ("attempts", *unpatched) == POOLS
