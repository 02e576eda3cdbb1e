"""Texts and schemas made to hurt, each in a separate process with little memory: what they cost, and what is said of them.

It must not hold what no limit in Python can stop: unions that overlap and refer to themselves, which the checker judges in exponential
time (ADR 26). Out: rows. The contract allows 2 s, and 4 s for 5 MB, for compiling and reading together; judged by the processor's
time, which is the time on an idle core (C-45).
"""

import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flujo_worker.aros import prepare
from tests.bench.aros_cost import FULL, ROWS_SCHEMA
from tests.bench.aros_timing import Row, brief

MEMORY, PATIENCE_S = 2 * 1024**3, 60
LIMIT_S, LARGE_LIMIT_S, LARGE = 2.0, 4.0, 5_000_000
FENCES, PROSE = 200_000, 2_000_000
BRANCHES, STRINGS = 50, 2_000
REFERENCES = 5_000

Case = tuple[dict[str, Any], str]


def on(text: str) -> Callable[[], Case]:
    """A text for an ordinary schema."""
    return lambda: (ROWS_SCHEMA, text)


def bomb(pattern: str) -> Callable[[], Case]:
    """A string that a backtracking engine never finishes with."""
    return lambda: ({"type": "string", "pattern": pattern}, json.dumps("a" * 100_000 + "!"))


def nested(depth: int) -> Case:
    """A schema that refers to itself, and a value as deep."""
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "additionalProperties": False}
    return {"$ref": "#/$defs/node", "$defs": {"node": node}}, '{"next": ' * depth + '"7"' + "}" * depth


def chain(length: int, end: str) -> Case:
    """References in a row; the last one ends them, or begins again."""
    last = {"type": "integer"} if end == "integer" else {"$ref": "#/$defs/r0"}
    defs = {f"r{index}": {"$ref": f"#/$defs/r{index + 1}"} for index in range(length)} | {f"r{length}": last}
    return {"$ref": "#/$defs/r0", "$defs": defs}, '"7"'


def union(text: str) -> Callable[[], Case]:
    """A list of strings, each of which is tried on every branch."""
    branches = [{"type": "integer", "const": number} for number in range(BRANCHES)]
    return lambda: ({"type": "array", "items": {"anyOf": branches}}, json.dumps([text] * STRINGS))


CASES: dict[str, Callable[[], Case]] = {
    "100 000 nested brackets": on("[" * 100_000 + "]" * 100_000),
    "5 MB of {": on("{" * LARGE),
    "5 MB of [1,": on("[1," * (LARGE // 3 + 1)),
    "5 MB of {}": on("{}" * (LARGE // 2)),
    "5 MB list, cut": on("[" + "1," * (LARGE // 2)),
    "1 MB of quotes": on('"' * 1_000_000),
    "1 MB of backslashes": on("\\" * 1_000_000),
    "1 MB of backslashes in a string": on('{"rows": "' + "\\" * 1_000_000),
    "1 MB of quotes inside a string": on('{"rows": "' + 'x" ' * 333_333),
    "200 000 fences": on("```json\n" * FENCES),
    "200 000 fences, an object in each": on('```json\n{"row": 1}\n```\n' * FENCES),
    "2 MB of prose without JSON": on(("It's what they'd said: a plain answer, no data. " * 50_000)[:PROSE]),
    "a pattern that backtracks, 100 000 characters": bomb("^(a+)+$"),
    "the same with look-ahead": bomb("^(?=(a+)+$)(a|aa)+$"),
    "a schema that refers to itself, 500 deep": lambda: nested(500),
    "the same, 5000 deep": lambda: nested(5_000),
    "50 references in a row": lambda: chain(50, "integer"),
    "5000 references in a row": lambda: chain(REFERENCES, "integer"),
    "5000 references in a ring": lambda: chain(REFERENCES, "ring"),
    "2000 strings, the last of 50 branches fits": union(str(BRANCHES - 1)),
    "2000 strings, none of 50 branches fits": union("none"),
}


def hostile() -> list[Row]:
    return [_apart(name) for name in CASES]


def _apart(name: str) -> Row:
    """Let a separate process read one, which may be killed without harm."""
    command = [sys.executable, "-m", "tests.bench.aros_hostile", name]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=Path(__file__).parents[2]
        )
    except subprocess.TimeoutExpired:
        return {"case": name, "answer": f"none in {PATIENCE_S} s", "inside": False}
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [""]
        return {"case": name, "answer": f"ended with {done.returncode}: {last[0]}"[:80], "inside": False}
    row: Row = json.loads(done.stdout)
    return row


def _read(name: str) -> Row:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    schema, text = CASES[name]()
    start, busy = time.perf_counter(), time.process_time()
    outcome = prepare(schema, FULL)(text)
    took, worked = time.perf_counter() - start, time.process_time() - busy
    limit = LARGE_LIMIT_S if len(text) >= LARGE else LIMIT_S
    return {
        "case": name,
        "bytes": len(text),
        "answer": "read" if outcome.ok else f"refused: {outcome.rule}",
        "seconds": brief(took),
        "of the processor": brief(worked),
        "limit": limit,
        "inside": worked <= limit,
        "peak MB": peak(),
    }


def peak() -> int | None:
    """The most memory this process held, in MB, where the system tells; `getrusage` would tell of its parent too."""
    status = Path("/proc/self/status")
    found = re.search(r"VmHWM:\s+(\d+)", status.read_text()) if status.exists() else None
    return None if found is None else int(found[1]) // 1024


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_read(sys.argv[1])))
