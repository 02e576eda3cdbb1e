"""How the benchmark talks to a side."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
SIDE = """
from tests.bench.protocol import serve, timed

def broken():
    raise ValueError("no such table")

serve({"quick": lambda: timed("quick", 4, lambda: print("chatter"), 3), "broken": broken})
"""


def test_a_side_answers_each_workload_with_one_line_whatever_is_printed_and_continues_after_a_failure():
    asked = "broken\nquick\n"
    done = subprocess.run(
        [sys.executable, "-c", SIDE], input=asked, capture_output=True, text=True, cwd=ROOT, timeout=60, check=True
    )
    offers, failed, quick = map(json.loads, done.stdout.splitlines())
    assert offers == {"offers": ["broken", "quick"]}
    assert "no such table" in failed["failed"]
    assert quick["steps"] == 12
    assert len(quick["figures"]["quick"]) == 3
    assert done.stderr.count("chatter") == 3
