"""How the branches of a fan-out are spread over worker processes: who opens it takes its share of the messages, and no more."""

from collections import Counter
from statistics import median

import pytest
from share_pipelines import BRANCHES, WAITING

from tests.support.fleet import STEADY, wait_until

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.large,
    pytest.mark.usefixtures("own_workers"),
    pytest.mark.site(worker={**STEADY, "sweep_s": 3600, "renew_s": 1.0}),
]

KNOWN = """
    SELECT count(*) = 2 AND min(lease_until) > max(started_at) + make_interval(secs => %(lease_s)s) AS known
    FROM flujo_workers WHERE pid = ANY(%(pids)s)
"""
SHARES = """
    SELECT w.pid, count(*) AS share FROM flujo_attempts a JOIN flujo_workers w ON w.id = a.worker
    WHERE a.run_id = %(run)s AND a.kind = 'step' GROUP BY w.pid
"""
WAITING_NOW = "SELECT 1 FROM flujo_attempts WHERE run_id = %(run)s AND kind = 'step' AND status = 'running'"
LEAST = 0.35
ROUNDS = [3, pytest.param(120, marks=pytest.mark.chaos)]


def shares_of(site, rounds, *fleets):
    """Run a fan-out so often, once both workers know of each other; return what part of its branches each worker's process performed each time.

    A worker that gets no processor takes less for a second, so one round alone proves nothing.
    """
    pids, lease_s = [each.pid for fleet in fleets for each in fleet.processes], site.settings.worker.lease_s
    wait_until(lambda: site.rows(KNOWN, lease_s=lease_s, pids=pids)[0]["known"], what=site.log)
    shares = []
    for _ in range(rounds):
        run = site.client.enqueue("share_pipelines:thousand", 0)
        assert run.result(timeout=60).run_status == "succeeded"
        performed = Counter({row["pid"]: row["share"] for row in site.rows(SHARES, run=run.id)})
        assert performed.total() == BRANCHES
        shares.append([performed[pid] / BRANCHES for pid in pids])
    return shares


@pytest.mark.timeout(600)
@pytest.mark.parametrize("rounds", ROUNDS)
def test_two_idle_workers_share_a_fan_out(site, rounds):
    fleet = site.workers(2, arguments=("--pool", "attempts"))
    assert min(map(median, zip(*shares_of(site, rounds, fleet), strict=True))) >= LEAST


@pytest.mark.timeout(600)
@pytest.mark.parametrize("rounds", ROUNDS)
def test_beside_a_worker_half_of_whose_slots_wait_an_idle_one_gets_its_share(site, rounds):
    """The other one may get less: while the machine is late, a worker that has much under way takes fewer messages."""
    busy = site.workers(1, arguments=("--pool", "attempts"))
    gate = site.folder / f"gate-{rounds}"
    held = site.client.enqueue("share_pipelines:waiting", str(gate))
    wait_until(lambda: len(site.rows(WAITING_NOW, run=held.id)) == WAITING, what=site.log)
    idle = site.workers(1, arguments=("--pool", "attempts"))
    assert median(share for _, share in shares_of(site, rounds, busy, idle)) >= LEAST
    gate.touch()
    assert held.result(timeout=60).run_status == "succeeded"
