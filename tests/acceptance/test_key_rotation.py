"""The rotation of signing keys, as a drill: messages in flight at each stage are executed, and what an unknown key signed is refused.

At each stage clients enqueue while no worker is there, and workers of the next stage find those messages.
"""

import base64
import json
from itertools import pairwise

import pytest
from pydantic import SecretStr

from flujo_client import FlujoClient
from flujo_client.transport.dead_letters import LIST_KEY, DeadLetters
from tests.support.fleet import PATIENCE_S, STEADY, Site, assert_merged_once, wait_until

pytestmark = pytest.mark.acceptance

THREE = ["first", "second", "third"]
SECRETS = {"old": "the secret of last year", "new": "the secret of this year"}
STAGES = [("old",), ("old", "new"), ("new", "old"), ("new",)]


@pytest.fixture
def site(services, tmp_path):
    with Site(services, tmp_path, worker=STEADY) as site:
        yield site


def with_keys(site, names):
    keys = {name: SecretStr(SECRETS[name]) for name in names}
    return site.settings.model_copy(update={"signing_keys": keys})


def test_nothing_is_lost_while_keys_rotate(site):
    """M-014: both keys everywhere, then the new one first, then the old one is dropped."""
    runs = []
    for names, following in pairwise(STAGES):
        with FlujoClient(with_keys(site, names)) as client:
            begun = [client.enqueue("acceptance_pipelines:three", []) for _ in range(3)]
            message = site.redis.lindex("flujo.attempts", 0)
        assert signer(message) == names[0]
        site.settings = with_keys(site, following)
        site.standing()
        for run in begun:
            wait_until(lambda run=run: site.client.get_run(run.id).status() == "succeeded", what=site.log)
        site.dismiss()
        runs += begun
    assert DeadLetters(site.redis).refused().count == 0
    for run in runs:
        assert_merged_once(site, site.client.get_run(run.id), THREE)


def test_a_key_that_is_dropped_too_early_delays_runs_and_loses_none(site):
    """M-014: its messages are refused with the reason, and sent again under a key that workers know."""
    with FlujoClient(with_keys(site, ["old"])) as client:
        late = client.enqueue("acceptance_pipelines:three", [])
    site.settings = with_keys(site, ["new"])
    site.standing()
    wait_until(lambda: DeadLetters(site.redis).refused().count, what=site.log)
    [letter] = map(json.loads, site.redis.lrange(LIST_KEY, 0, -1))
    assert letter["reason"] == "undecodable"
    assert "signed with the unknown key 'old'" in letter["detail"]
    run = site.client.get_run(late.id)
    assert run.result(timeout=PATIENCE_S).run_status == "succeeded"
    assert_merged_once(site, run, THREE)
    assert DeadLetters(site.redis).refused().count == 1


def signer(message):
    """The id of the key that signed a message."""
    return base64.b64decode(json.loads(message)["body"]).split(b":")[1].decode()
