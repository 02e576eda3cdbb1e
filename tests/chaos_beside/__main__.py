"""`make chaos-beside`: the same faults on Flujo Worker and on other projects, as a table and as JSON."""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos_beside.count import Tally
from tests.chaos_beside.storm import storm
from tests.chaos_beside.tools import TOOLS, installed

SEEDS = [1, 2]
COLUMNS = {
    "accepted": "accepted",
    "lost": "lost",
    "failed": "failed",
    "never_ended": "never ended",
    "doubled": "doubled",
    "again": "run again",
    "more": "executions more",
}


def main():
    given = arguments()
    results = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} processors, {platform.system()} {platform.release()}, Python {platform.python_version()}",
        "seeds": given.seed or SEEDS,
        "seconds": given.duration,
        "workers": given.workers,
        "projects": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        logs = given.logs or Path(folder)
        for tool in TOOLS:
            if (given.only is None or tool.name in given.only) and (side := installed(tool, Path(folder))):
                results["projects"].append(measured(side, given, logs))
                if given.json:
                    given.json.write_text(json.dumps(results, indent=2) + "\n")
    print(table(results))


def arguments():
    parser = argparse.ArgumentParser(prog="make chaos-beside")
    parser.add_argument("--seed", type=int, action="append", help="repeatable; 1 and 2 by default")
    parser.add_argument("--duration", type=float, default=60.0, help="seconds of faults")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", action="append", choices=[tool.name for tool in TOOLS], help="repeatable")
    parser.add_argument("--logs", type=Path, help="keep what workers and clients print in this folder")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    return parser.parse_args()


def measured(side, given, logs):
    """Return the results of a project: each storm, and their sum. A storm that could not begin is named, and does not count."""
    total, storms = Tally(), []
    for seed in given.seed or SEEDS:
        print(f"{side.tool.name} {side.version}, seed {seed} …", file=sys.stderr)
        load = round(os.getloadavg()[0], 1)
        try:
            outcome = storm(side, seed=seed, seconds=given.duration, workers=given.workers, logs=logs)
        except (TimeoutError, subprocess.CalledProcessError) as error:
            storms.append({"seed": seed, "load_before": load, "not_begun": str(error)})
        else:
            total += outcome.tally
            faults, settled = outcome.faults, round(outcome.settled_s, 1)
            storms.append(
                {
                    "seed": seed,
                    "load_before": load,
                    "faults": faults,
                    "settled_s": settled,
                    **outcome.tally.tree(),
                }
            )
        print(storms[-1], file=sys.stderr)
    return {"name": side.tool.name, "version": side.version, **total.tree(), "storms": storms}


def table(results):
    """Draw the results as a Markdown table."""
    head = ["", "version", *COLUMNS.values(), "recovery p50", "max"]
    lines = [head, ["---"] * len(head)]
    for each in results["projects"]:
        counts = [str(each[name]) for name in COLUMNS]
        lines.append([each["name"], each["version"], *counts, *recovery(each)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def recovery(project):
    """Return the median and the longest recovery, and how many runs did not recover, as text."""
    never, known = project["never_recovered"], project["recovery_s"]
    if not known:
        return "none measured", f"{never} never"
    median = project["recovery_p50_s"]
    return "never" if median is None else f"{median:.1f} s", f"{known[-1]:.1f} s" + (
        f"; {never} never" if never else ""
    )


if __name__ == "__main__":
    main()
