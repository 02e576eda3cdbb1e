"""Processes that only send an app's own tasks need nothing of ours but the installed package (issue 34, line 20)."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

WEB = """
import sys
from celery import Celery

app = Celery("shop", broker="memory://", backend="cache+memory://")
app.conf.accept_content = ["json", "flujo"]
app.conf.task_always_eager = True
app.conf.task_store_eager_result = True

@app.task(name="shop.add")
def add(left, right):
    return left + right

print(add.delay(1, 2).get(), app.AsyncResult("unknown").state)
print(sorted({"flujo_worker", "flujo_client.transport.wire", "pydantic", "orjson"} & sys.modules.keys()))
"""


@pytest.fixture
def installed(tmp_path):
    """Return an environment in which the package has the entry points of pyproject.toml, as after an installation."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["kombu.serializers"]
    folder = tmp_path / "flujo_worker-0.0.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: flujo-worker\nVersion: 0.0.0\n")
    lines = [f"{name} = {place}" for name, place in declared.items()]
    (folder / "entry_points.txt").write_text("\n".join(["[kombu.serializers]", *lines, ""]))
    return {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}


def test_a_process_that_only_sends_tasks_knows_the_serializer_and_imports_nothing_heavy(installed):
    done = subprocess.run([sys.executable, "-c", WEB], env=installed, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("3 PENDING\n[]\n", "")


ROUND = """
from kombu import serialization
from kombu.serialization import dumps, loads
content_type, encoding, body = dumps({"a": [1, None]}, "flujo")
print(loads(body, content_type, encoding, accept={content_type}))
from flujo_client.transport.wire import register
register([("k1", b"0123456789abcdef")])
print(dumps({}, "flujo")[2][:7])
try:
    loads(body, content_type, encoding, accept={content_type})
except serialization.DecodeError as error:
    print(error)
"""


def test_what_carries_messages_replaces_it_with_its_own_keys(installed):
    done = subprocess.run([sys.executable, "-c", ROUND], env=installed, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines()[:2] == ["{'a': [1, None]}", "b'fw1:k1:'"]
    assert "not signed" in done.stdout.splitlines()[2]
