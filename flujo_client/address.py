"""Addresses: readable, and derived instead of random.

A scope's address is a path such as `review/loop#3/legal`; the root scope's is the empty string. A container has its own scope,
`<sequence>/<node>`, and its children's addresses extend it: iterations and items by `#3`, branches and paths by `/legal`. So a child's
address always begins with its parent's and is longer.

An attempt's key is `run:address:step:number`, and that is also its Celery task id; work that is not an attempt at a step has its kind in
place of the number, followed by its number from the second on: `resume`, `resume2`.
"""

from __future__ import annotations

import re
import secrets
from hashlib import sha256
from typing import Any, NamedTuple

from flujo_client.sizes import MAX_NAME, MAX_RUN_ID

ROOT = ""
STEP = "step"
END = "#end"
"""Behind a container's name: the end of one of its bodies, as the place of work that continues from there. No node is called so."""
_NAME = re.compile(rf"[^/:#\x00-\x1f\x7f\ud800-\udfff]{{1,{MAX_NAME}}}")
_CHILD = re.compile(r"[/#][^/]+")
_WORD = re.compile(r"([a-z]+)(\d*)")
_RUN_ID = re.compile(rf"[A-Za-z0-9_.-]{{1,{MAX_RUN_ID}}}")
_RANDOM_END = re.compile(r"(?:^run_|\.)[0-9a-f]+$")
_MOST_OF_FIRST, _DIGITS = 59, 20


class AttemptKey(NamedTuple):
    """One try at one piece of work: its address and its number, counted from 1."""

    run: str
    address: str
    step: str
    number: int
    kind: str = STEP

    def __str__(self) -> str:
        last = self.number if self.kind == STEP else self.kind if self.number == 1 else f"{self.kind}{self.number}"
        return f"{self.run}:{self.address}:{self.step}:{last}"

    @classmethod
    def parse(cls, text: str) -> AttemptKey:
        """Read a key back from its text; raises ValueError if it is not one."""
        run, address, step, last = text.split(":")
        if last.isdecimal():
            return cls(run, address, step, int(last))
        word = _WORD.fullmatch(last)
        if word is None:
            raise ValueError(f"'{last}' is neither a number nor a kind of work")
        return cls(run, address, step, int(word[2] or 1), word[1])


def below(address: str, name: str) -> str:
    """Return the address of a node in a sequence."""
    return f"{address}/{name}" if address else name


def is_repeated(address: str) -> bool:
    """Return whether a scope is in an iteration, an item or a turn, of which there may be any number."""
    return "#" in address


def new_run_id(at: float) -> str:
    """Generate an id that sorts by time, `at` in unix seconds: 48 bits of milliseconds, then 64 random bits (after RFC 9562, version 7)."""
    return f"run_{int(at * 1000):012x}{secrets.token_hex(8)}"


def child_run_id(parent: str, address: str) -> str:
    """Return the id of the run that `parent` begins at a container: the root run's, then a digest of the parent and the place.

    At any nesting of child runs, it has at most the 80 characters of a run's id.
    """
    first = parent.partition(".")[0][:_MOST_OF_FIRST]
    return f"{first}.{sha256(f'{parent}:{address}'.encode()).hexdigest()[:_DIGITS]}"


def end_of(run_id: str, length: int) -> str:
    """Return the end of a run's id, which names it, or all of an id whose end is not random: the time of a schedule, or what a user chose."""
    return run_id[-length:] if _RANDOM_END.search(run_id) else run_id


def branch_of(fan_out: str, address: str) -> str:
    """Return the address of the branch of `fan_out` that `address` is, or is in."""
    found = _CHILD.match(address, len(fan_out))
    if not address.startswith(fan_out) or found is None:
        raise ValueError(f"'{address}' is not in a branch of '{fan_out}'")
    return address[: found.end()]


def is_name(text: str) -> bool:
    """Return whether `text` can be a part of an address."""
    return bool(_NAME.fullmatch(text)) and text.strip() == text


def is_run_id(text: Any) -> bool:
    """Return whether `text` can be a run's id: no NUL, no surrogates, nothing that an address uses."""
    return isinstance(text, str) and bool(_RUN_ID.fullmatch(text))
