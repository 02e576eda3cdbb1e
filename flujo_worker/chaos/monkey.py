"""Run a storm of faults, wait until all runs have ended, and judge."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final

from flujo_worker.chaos.faults import FaultDeck
from flujo_worker.chaos.invariants import judge
from flujo_worker.chaos.network_faults import NetworkFaults
from flujo_worker.chaos.report import Report, recoveries
from flujo_worker.chaos.site import Site
from flujo_worker.chaos.traffic import Traffic

GAP_S: Final = (0.5, 2.0)
LOOK_EVERY_S: Final = 0.1


def run_chaos(
    site: Site, *, seed: int, seconds: float, quiet_s: float = 300.0, watch: Callable[[str], None] = lambda _: None
) -> Report:
    """Inject faults into a site for so many seconds, and judge the final state. The seed fixes the order of faults and pipelines.

    Everything may take `quiet_s` seconds to end after the last fault. `watch` is called with each fault, and with each wait.
    """
    traffic = Traffic(site, seed)
    faults = (FaultDeck if site.network is None else NetworkFaults)(site, traffic, seed)
    draw = random.Random(f"gaps {seed}")
    site.start_workers()
    began = time.monotonic()
    traffic.start()
    while (now := time.monotonic() - began) < seconds:
        watch(f"{now:6.1f} s  {faults.strike()}")
        _pass(draw.uniform(*GAP_S), faults)
    faults.end()
    traffic.stop()
    watch(f"{time.monotonic() - began:6.1f} s  quiet: all runs have to end within {quiet_s:g} s")
    calm_at = time.monotonic()
    _let_end(site, traffic, faults, calm_at + quiet_s)
    ended_at = time.monotonic()
    [totals] = site.rows("totals")
    return Report(
        seed=seed,
        seconds=seconds,
        quiet_s=ended_at - calm_at,
        workers=len(site.fleet.processes),
        totals=totals | {"lost": len(site.rows("missing", acknowledged=list(traffic.acknowledged)))},
        recoveries=recoveries(faults.strikes, site.rows("ended_attempts")),
        verdicts=judge(site, site.kept(traffic.acknowledged), faults.observed),
    )


def _pass(seconds: float, faults: FaultDeck) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        faults.replace_dead()
        time.sleep(LOOK_EVERY_S)


def _let_end(site: Site, traffic: Traffic, faults: FaultDeck, until: float) -> None:
    while site.live_runs() and time.monotonic() < until:
        traffic.answer()
        _pass(LOOK_EVERY_S, faults)
