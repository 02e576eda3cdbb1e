"""The containers that the acceptance tests' workers import: fan-outs of every kind and strategy, loops, and both inside each other.

What is to happen to a run is in its context, so that one set of steps serves all tests. Each step leaves a line in the journal
when it is begun, under a label that tells one branch or iteration from another.
"""

import asyncio
import os
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import structlog
from acceptance_pipelines import ONCE, folder
from pydantic import BaseModel

from flujo_client import Pipeline, Step, StepConfig
from flujo_client.contract.outcome import Usage
from flujo_client.plan.plan import Backoff
from flujo_worker.agents.answer import AgentAnswer

LETTERS = ["a", "b", "c"]
SPENT = Usage(input_tokens=10, output_tokens=5, requests=1, cost_usd=0.25)
PATIENT = StepConfig(max_retries=2, backoff=Backoff(base_s=0.5, jitter=0.0))


class Ledger(BaseModel):
    """The context: what steps write, and above it what the test wants to happen."""

    gate: str = ""
    gated: list[str] = []
    failing: list[str] = []
    goal: int = 3
    items: list[Any] = LETTERS

    table: dict[str, int] = {}
    seen: list[str] = []
    count: int = 0
    turns: int = 0


def sign(label: str) -> str:
    """Write the journal's line under a label; give the step's name."""
    bound = structlog.contextvars.get_contextvars()
    with (folder() / "journal").open("ab", buffering=0) as journal:
        journal.write(f"{bound['run']} {label} {bound['attempt']} {os.getpid()}\n".encode())
    return str(bound["step"])


async def pass_gate(context: Ledger, label: str) -> None:
    """Wait, if the test wants it here, for the gate to be opened for this label or for all; tell that someone waits."""
    if label not in context.gated:
        return
    (folder() / f"{label}-at-{context.gate}").touch()
    gates = [folder() / f"gate-{context.gate}", folder() / f"gate-{context.gate}-{label}"]
    while not any(gate.exists() for gate in gates):  # noqa: ASYNC110 - another process opens it
        await asyncio.sleep(0.05)


async def work(data: Any, *, context: Ledger) -> AgentAnswer:
    """A branch's only step: writes into a mapping of all, and, but for the first branch, into a list and a number."""
    step = structlog.contextvars.get_contextvars()["step"]
    letter = step if step in LETTERS else data
    sign(letter)
    context.table[letter] = 1
    if letter != "a":
        context.seen.append(letter)
        context.count += 1
    await pass_gate(context, letter)
    if letter in context.failing:
        raise ValueError(f"no {letter}")
    return AgentAnswer(letter.upper(), SPENT)


async def rescue(data: Any, *, context: Ledger) -> AgentAnswer:
    """A fallback, under the input that it and the step have in common."""
    sign(f"rescue-{data}")
    context.count += 100
    await pass_gate(context, f"rescue-{data}")
    return AgentAnswer(f"rescued {data}", SPENT)


async def never(data: Any) -> Any:
    sign("never")
    raise ValueError(f"never {data}")


async def choose(_: Any) -> list[str]:
    sign("choose")
    return LETTERS


async def follow(data: Any) -> Any:
    sign("after")
    return data


async def add(data: int, *, context: Ledger) -> int:
    """Count itself, under the number it is given."""
    step = sign(f"add{data}")
    await pass_gate(context, step)
    context.count += 1
    return data + 1


async def leaf(data: Any, *, context: Ledger) -> Any:
    sign("leaf")
    context.count += 1
    return data


async def turn(_: Any, *, context: Ledger) -> int:
    context.turns += 1
    sign(f"turn{context.turns}")
    return context.turns


async def shake(data: Any, *, context: Ledger) -> Any:
    """Fail twice, each time with a changed context that must not be merged."""
    sign("shaky")
    context.count += 1
    if structlog.contextvars.get_contextvars()["attempt"] <= 2:
        raise ValueError("not yet")
    return data


async def enough(output: int, context: Ledger) -> bool:
    await pass_gate(context, f"exit{output}")
    return output >= context.goal


async def stack(context: Ledger, branches: dict[str, Ledger]) -> None:
    """A merge of the user's own, in place."""
    await pass_gate(context, "merge")
    for name, branch in branches.items():
        context.seen.append(name)
        context.count += 10 + branch.count


def first(*_: Any) -> int:
    return 0


def is_even(output: int, _: Ledger) -> bool:
    return output % 2 == 0


def _row(*steps: Step) -> Pipeline:
    return Pipeline(list(steps), context_model=Ledger)


def _fan(kind: str, **options: Any) -> Step:
    branches = {letter: Step(letter, work, config=ONCE) for letter in LETTERS}
    if kind == "map":
        item = Step("item", work, config=ONCE)
        return Step.map_over("fan", item, iterable_input="items", parallel=True, **options)
    if kind == "router":
        return Step.dynamic_parallel_branch("fan", choose, branches, **options)
    return Step.parallel("fan", branches, **options)


KINDS = ("parallel", "map", "router")
STRATEGIES = {
    "context_update": "context_update",
    "overwrite": "overwrite",
    "keep_first": "keep_first",
    "error_on_conflict": "error_on_conflict",
    "no_merge": "no_merge",
    "callable": stack,
}
ON_FAILURE = ("propagate", "ignore")

fans = SimpleNamespace(
    **{
        f"{kind}_{strategy}_{on_failure}": _row(
            _fan(kind, merge_strategy=STRATEGIES[strategy], on_branch_failure=on_failure), Step("after", follow)
        )
        for kind, strategy, on_failure in product(KINDS, STRATEGIES, ON_FAILURE)
    }
)
"""One pipeline for each kind of fan-out, strategy and meaning of failure, each with a step behind it."""


def _nest(depth: int) -> Step:
    inner = _nest(depth - 1) if depth > 1 else Step("leaf", leaf)
    return Step.parallel(f"fan{depth}", {"left": inner, "right": inner})


def _rounds(body: Any) -> Step:
    return Step.loop_until("rounds", body, enough, max_loops=1000)


_branches = {"shaky": Step("shaky", shake, config=PATIENT), "steady": _row(Step("one", leaf), Step("two", leaf))}
_sides = Step.branch_on("sides", is_even, {True: Step("even", leaf), False: _nest(1)})
_lanes = Step.map_over("lanes", Step("item", work), iterable_input="items", max_concurrency=2)
_wide = Step.map_over("wide", Step("add", add), iterable_input="items", parallel=True)

deep = _row(_nest(3), Step("after", follow))
wide = _row(_wide, Step("after", follow))
rounds = _row(_rounds(Step("add", add)), Step("after", follow))
opening = _row(Step("first", leaf), Step.parallel("fan", _branches), Step("after", follow))
merging = _row(Step.parallel("fan", _branches, merge_strategy=stack), Step("after", follow))
_rescued = {letter: Step(letter, work, config=ONCE).fallback(Step("rescue", rescue)) for letter in LETTERS}
_added = Step.loop_until(
    "rounds",
    Step("never", never, config=PATIENT).fallback(Step("add", add)),
    enough,
    max_loops=9,
    initial_input_to_loop_body_mapper=first,
)
falling = _row(
    Step.parallel("fan", _rescued),
    _added,
    replace(_fan("map"), name="each").fallback(Step("rescue", rescue)),
    Step("after", follow),
)
mixed = _row(_rounds(_row(_sides, _lanes, Step.parallel("fan", _branches), Step("turn", turn))))
