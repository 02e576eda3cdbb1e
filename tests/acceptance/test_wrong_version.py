"""A message that names a version its scope has not: the outcome is refused, and the run continues."""

import base64
from dataclasses import replace

import orjson
import pytest

from flujo_client.contract.envelope import Envelope
from flujo_client.transport.broker import Broker
from flujo_client.transport.wire import load
from tests.support.fleet import BRISK

pytestmark = [pytest.mark.services, pytest.mark.acceptance, pytest.mark.site(worker=BRISK)]


def test_a_wrong_version_costs_a_repeat_and_not_the_run(site):
    """Law 6: no one's fault may leave an attempt running under a worker that does not work on it."""
    run = site.enqueue("three")
    message = orjson.loads(site.redis.rpop("flujo.attempts"))
    (wire,), _, _ = load(base64.b64decode(message["body"]))
    Broker(site.settings).publish([replace(Envelope.from_wire(wire), version=7)])
    site.workers(1)
    assert run.result(timeout=60).success
    assert len(site.executions(run.id, "first")) == 2
    assert [event["data"]["verdict"] for event in site.events(run.id, "outcome.refused")] == ["stale"]
