"""Measure what steps cost beside bare Celery, and print medians, their spread and ratios as a table and as JSON.

All sides run by turns on the same Postgres and the same Redis, because a machine's speed drifts. The faster of two ways to
run bare Celery (one prefork worker with two children, or two threads workers) is the baseline.
"""

import argparse
import json
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.bench.checkouts import checked_out
from tests.bench.peers.installing import durable, installed
from tests.bench.report import as_json, show_bench, show_sides
from tests.bench.sides import Services, Side, measure
from tests.bench.workloads import BARE, DURABLE, KILLS, LIBRARY, LONG, OBSERVED, PEER, WORKLOADS

OURS = Side("ours")
BESIDE = [Side(f"bare {pool}", "side_bare", BARE, arguments=(f"--pool={pool}",)) for pool in ("prefork", "threads")]
ALONE = Side("library", "side_library", LIBRARY)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kills", type=int, help="how often W7 kills: 50 times, and beside other projects 2")
    parser.add_argument("--json", type=Path, default=Path("bench.json"), help="where the figures go")
    parser.add_argument("--only", action="append", help="a workload, or all whose names begin so, such as W3")
    rivals = parser.add_mutually_exclusive_group()
    rivals.add_argument("--base", help="compare with this revision instead of bare Celery")
    rivals.add_argument(
        "--observed", action="store_true", help="compare with itself: traces, metrics and JSON logs on and off"
    )
    rivals.add_argument("--streamed", action="store_true", help="compare with itself: all steps streamed, and none")
    rivals.add_argument("--peers", action="store_true", help="compare with other projects instead")
    options = parser.parse_args()
    os.environ[KILLS] = str(options.kills or (2 if options.peers else 50))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        if options.base:
            sides = [Side("base", python=stack.enter_context(checked_out(options.base, folder))), OURS]
        elif options.observed or options.streamed:
            shows = "observed" if options.observed else "streamed"
            sides = [Side("off", offers=OBSERVED, shows="nothing"), Side("on", offers=OBSERVED, shows=shows)]
        elif options.peers:
            sides = [*installed(folder), OURS]
        else:
            beside = durable(folder) if chosen(options) & DURABLE else []
            sides = [*BESIDE, ALONE, *beside, OURS]
        samples = measure(stack.enter_context(Services()), sides, chosen(options), options.rounds)
    options.json.write_text(json.dumps(as_json(samples), indent=2) + "\n")
    is_switched = options.observed or options.streamed
    against = "base" if options.base else "off" if is_switched else "ours"
    if options.base or options.peers or is_switched:
        show_sides(samples, against)
    else:
        show_bench(samples)
    if samples.failures:
        sys.exit("\n".join(["FAILED", *samples.failures]))


def chosen(options: argparse.Namespace) -> set[str]:
    """The workloads that were asked for; else all, but of a comparison only those that do not take minutes."""
    if options.only:
        return {name for name in WORKLOADS if name.startswith(tuple(options.only))}
    if options.observed or options.streamed:
        return set(OBSERVED)
    if options.peers:
        return set(PEER)
    return set(WORKLOADS) - (LONG if options.base else set())


if __name__ == "__main__":
    main()
