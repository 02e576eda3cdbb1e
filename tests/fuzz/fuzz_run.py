"""`make fuzz`: mutated inputs for every door by which untrusted bytes come in.

    python -m fuzz_run --seconds 60 --seed 7 --only aros

No input may raise an error that is not documented, take longer than a bound, or need more memory than a bound. What does is written to
`found/`: mend it, and move the file into `corpus/`, which every run and `make test` try first. An input that ends as none before it is
mutated further, so that the search goes deeper than its seeds.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import resource
import secrets
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import NamedTuple

from fuzz_mutations import ODD, mutated
from fuzz_targets import CORPUS, TARGETS, Target

MOST_S = 2.0
"""Seconds of processor time that an input may take."""
MOST_BYTES = 256 * 1024 * 1024
"""By how much an input may raise the memory of this process."""
VARYING = re.compile(r"""[0-9]+|["'].*["']""", re.DOTALL)
FOUND = Path(__file__).parent / "found"


class TookTooLong(BaseException):
    """Raised in the middle of whatever takes too long; no handler of the code under test catches it."""


class Finding(NamedTuple):
    """An input that does what none may."""

    target: str
    data: bytes
    why: str

    def save(self) -> Path:
        """Write the input to a file, which is named after its content."""
        file = FOUND / self.target / hashlib.sha256(self.data).hexdigest()[:16]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(self.data)
        return file


def corpus(name: str) -> list[bytes]:
    """Return the stored inputs of a target."""
    return [file.read_bytes() for file in sorted((CORPUS / name).glob("*")) if file.is_file()]


@contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Raise TookTooLong after so many seconds of processor time; later, where code in C does not return."""

    def stop(*_: object) -> None:
        raise TookTooLong

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def peak_bytes(*, anew: bool = False) -> int:
    """Return the most memory that this process had; again: since now, where the system can forget a peak, as Linux does."""
    if anew:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def outcome(target: Target, data: bytes) -> tuple[str, str | None]:
    """Use an input; return how that ended, without the values that differ each time, and what is wrong about it, or None."""
    memory = peak_bytes(anew=True)
    try:
        with bounded(MOST_S):
            target.use(data)
    except target.allowed as error:
        ended = f"{type(error).__name__}: {VARYING.sub('', str(error))[:120]}"
    except TookTooLong:
        return "time", f"it took more than {MOST_S:g} s of processor time"
    except Exception:  # noqa: BLE001 - that is what is looked for
        return "error", traceback.format_exc(limit=-4)
    else:
        ended = "accepted"
    grown = peak_bytes() - memory
    return ended, f"it needed {grown // 1_048_576} MB" if grown > MOST_BYTES else None


def fuzz(
    name: str, draw: Random, *, rounds: int | None = None, seconds: float | None = None
) -> tuple[int, list[Finding]]:
    """Try the corpus of a target, then mutated inputs, for so many rounds or seconds. Return how many, and what was found."""
    target = TARGETS[name]
    stored = corpus(name)
    pool = [*stored, *target.seeds()]
    words = [*target.words, *ODD]
    found, seen, tried = [], set(), 0
    until = None if seconds is None else time.monotonic() + seconds
    waiting = list(stored)
    while waiting or (tried < len(stored) + rounds if rounds is not None else time.monotonic() < (until or 0)):
        data = waiting.pop() if waiting else mutated(draw.choice(pool), pool, words, draw)
        ended, wrong = outcome(target, data)
        tried += 1
        if wrong is not None:
            found.append(Finding(name, data, wrong))
        elif ended not in seen:
            seen.add(ended)
            pool.append(data)
    return tried, found


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz each target for a while; return 1 if something was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--only", choices=list(TARGETS), action="append")
    given = parser.parse_args(arguments)
    print(f"seed {given.seed}", flush=True)
    is_found = False
    for name in given.only or TARGETS:
        tried, found = fuzz(name, Random(f"{given.seed} {name}"), seconds=given.seconds)
        print(f"{name}: {tried} inputs, {len(found)} findings", flush=True)
        for each in {finding.why: finding for finding in found}.values():
            print(f"  {each.save()}\n    {each.why.strip()}", flush=True)
            is_found = True
    return int(is_found)


if __name__ == "__main__":
    sys.exit(main())
