"""An only worker whose connections are half open, cut in the middle of a message, slow, or deaf in one direction."""

import shutil
import tempfile
from functools import partial
from pathlib import Path

import pytest

from flujo_worker.chaos.network import POSTGRES, REDIS, Network
from flujo_worker.chaos.relay import WAYS, Relay
from tests.support.fleet import BRISK, Site, assert_merged_once, one_process, wait_until

pytestmark = [pytest.mark.services, pytest.mark.acceptance, pytest.mark.large, one_process]

SECONDS = 25.0
"""Silence is noticed after 5 seconds; the rest is for a busy machine."""


@pytest.fixture(scope="module")
def site(services, tmp_path_factory):
    """A site whose workers reach the services over the link of `site.network`."""
    folder = Path(tempfile.mkdtemp(prefix="net-", dir="/tmp"))  # a socket's name is short
    with Site(services, tmp_path_factory.mktemp("site"), worker=BRISK) as site:
        settings, urls = site.settings, (site.settings.database(), site.settings.broker())
        with Network(urls, folder, 0, settings.with_services, is_apart=False) as network:
            site.network, site.settings = network, network.links[0].settings
            yield site
            site.dismiss()
    shutil.rmtree(folder)


@pytest.mark.parametrize("service", [POSTGRES, REDIS])
@pytest.mark.parametrize("act", [Relay.abandon, Relay.cut])
def test_an_only_worker_notices_that_its_connections_are_gone(site, service, act):
    site.standing()
    gated = site.enqueue("gated")
    site.wait_for_execution(gated.id, "gate")
    site.network.change(partial(act, site.network.links[0].relays[service]))
    site.open_gate(gated.id)
    run = site.enqueue("three")
    assert run.result(timeout=SECONDS).run_status == "succeeded"
    assert gated.result(timeout=SECONDS).run_status == "succeeded"
    for each, steps in ((gated, ["before", "gate", "after"]), (run, ["first", "second", "third"])):
        assert_merged_once(site, each, steps)


@pytest.mark.parametrize("ways", [WAYS, ("request",), ("answer",)])
def test_an_only_worker_that_was_cut_off_for_longer_than_its_lease_continues(site, ways):
    site.standing()
    relay = site.network.links[0].relays[POSTGRES]
    gated = site.enqueue("gated")
    site.wait_for_execution(gated.id, "gate")
    site.network.change(partial(relay.hold, *ways))
    run = site.enqueue("three")
    wait_until(lambda: not site.live_pids(), what=site.log)
    site.network.change(relay.release)
    site.open_gate(gated.id)
    assert run.result(timeout=SECONDS).run_status == "succeeded"
    assert_merged_once(site, gated, ["before", "gate", "after"])
