"""The logs of an app that Flujo is attached to stay as its owner has configured them, before Flujo came or after."""

import json
from pathlib import Path

import pytest

from flujo_client.trace_context import trace_id
from tests.support.commands import running
from tests.support.sentry_server import SentryServer

pytestmark = [pytest.mark.integrations, pytest.mark.services, pytest.mark.acceptance]

HERE = Path(__file__).parent


@pytest.mark.parametrize("order", ["before", "after"])
def test_the_hosts_configuration_stays(site, order):
    command = ("celery", "-A", "logged_app", "worker", "-P", "threads", "-c", "2")
    with SentryServer() as sentry, running(site, HERE, *command, ORDER=order, SENTRY_DSN=sentry.dsn):
        run = site.client.enqueue("logged_shop:pipeline", "yes", tenant="acme")
        result = run.result(timeout=60)
    assert result.output == [True, True, "host-1"], (result.error, site.log())
    log = (site.folder / "workers.log").read_text().splitlines()
    [line] = [json.loads(each) for each in log if run.id in each and '"looked"' in each]
    assert (line["host"], line["run"], line["tenant"], line["step"]) == ("mine", run.id, "acme", "look")
    assert line["trace_id"] == trace_id(run.id, None)
