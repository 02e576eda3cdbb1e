"""The runs that are simulated, and how each of them ends where nothing goes wrong: `LocalEngine` says that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from shapes import ADDING, SHAPES, Stubborn, pipeline, send_some, step, tell

from flujo_client.config.manager import Settings
from flujo_client.contract.admission import RunLimit
from flujo_client.contract.limits import Limit, UsageLimits
from flujo_client.contract.outcome import Usage
from flujo_client.contract.records import NewRun
from flujo_client.pipeline.step import Step, StepConfig
from flujo_worker.agents.answer import AgentAnswer
from flujo_worker.changed_code.code_registry import CodeRegistry
from flujo_worker.store.memory.rows import StoredRun
from flujo_worker.store.memory.stores import MemoryStores
from flujo_worker.testing import LocalEngine
from tests.support.builders import packed

SETTINGS = Settings(
    worker={"max_lost": 1000},
    limits={"snapshot_inline_bytes": 20},
    admission={"tenant": {"narrow": {"max_running": 1}}},
)


def spend(data: Any) -> AgentAnswer:
    """Answer, for ten tokens."""
    return AgentAnswer(f"bought {data}", Usage(6, 4, 1, 0.1))


def limited(name: str, **rest: Any) -> Step:
    return step(name, rest.pop("agent", tell), limit=Limit("crm", 2), **rest)


def paid(name: str) -> Step:
    return Step(name, spend, config=StepConfig(max_retries=2, expected_tokens=10))


FANNED = pipeline(
    Step.parallel("p", {f"b{number}": pipeline(limited("s"), limited("t")) for number in range(4)}), limited("z")
)
STUMBLING = pipeline(limited("a", agent=Stubborn(2)), Step.parallel("p", {"i": limited("i"), "j": limited("j")}))
BUYING = pipeline(
    paid("a"),
    Step.parallel("p", {"i": paid("i"), "j": pipeline(paid("j")).as_step("own", own_run=True)}),
    paid("z"),
)
CHILD = pipeline(step("a", tell), pipeline(*ADDING).as_step("own", own_run=True), step("z", tell))
ENOUGH = UsageLimits(total_tokens_limit=100_000)
ONE, TWO = RunLimit("one", 1), RunLimit("two", 2)

PLAIN = "adding stumbling failing looping branching lanes spoilt forgiving falling asking awaiting waiting launching aborted deep"
CASES: dict[str, tuple[Any, dict[str, Any]]] = {name: (SHAPES[name], {}) for name in PLAIN.split()}
CASES |= {
    "fanned": (FANNED, {}),
    "fanned again": (FANNED, {}),
    "limited": (STUMBLING, {"run_limits": [TWO]}),
    "buying": (BUYING, {"limits": ENOUGH}),
    "child": (CHILD, {}),
    "first": (SHAPES["adding"], {"run_limits": [TWO], "tenant": "narrow"}),
    "second": (SHAPES["branching"], {"run_limits": [TWO]}),
    "third": (SHAPES["stumbling"], {"run_limits": [ONE, TWO]}),
    "fourth": (SHAPES["one"], {"run_limits": [ONE], "tenant": "narrow"}),
    "fifth": (CHILD, {"tenant": "narrow"}),
    "sixth": (BUYING, {"run_limits": [ONE], "limits": ENOUGH}),
}
THEMES: tuple[tuple[str, ...], ...] = (
    tuple(CASES),
    ("first", "second", "third", "fourth", "fifth", "sixth", "limited"),
    ("fanned", "fanned again", "limited", "looping"),
    ("buying", "sixth", "child", "launching"),
)
"""Cases that are simulated together: any, or those that share gates, a concurrency limit, or have budgets and child runs."""
CUT = ("spoilt", "falling")
"""Cases in which a branch is cut off by another one; how far it has come by then is left to chance."""


@dataclass(frozen=True)
class Ending:
    """How a run and its child runs end: by their ids, and by their attempts' keys."""

    runs: Mapping[str, Any]
    steps: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Case:
    """A run as clients record it, and its end where nothing goes wrong."""

    name: str
    new: NewRun
    ending: Ending

    @property
    def run(self) -> str:
        return self.new.first.ticket.run

    def difference(self, stores: MemoryStores) -> list[str]:
        """Say in what the run has ended otherwise than where nothing goes wrong."""
        ending = ending_of(stores, self.run)
        found = _difference(self.ending.runs, ending.runs)
        return found if self.name in CUT else found + _difference(self.ending.steps, ending.steps)


@cache
def prepared() -> tuple[CodeRegistry, Mapping[str, Case]]:
    """Run every case once where nothing goes wrong; return their code, and the cases."""
    news: list[NewRun] = []
    with LocalEngine(SETTINGS) as engine:
        record = engine.stores.client.record
        engine.stores.client.record = lambda new: news.append(new) or record(new)  # type: ignore[method-assign,func-returns-value]
        for number, (shape, options) in enumerate(CASES.values()):
            engine.enqueue(shape, "bees", run_id=f"run_{number:028x}", **options)
            engine.drain()
            while any(answer_all(engine.stores, news[-1].first.ticket.run)):
                engine.drain()
        cases = [
            Case(name, new, ending_of(engine.stores, new.first.ticket.run))
            for name, new in zip(CASES, news, strict=True)
        ]
        return engine._local, {each.name: each for each in cases}


def answer_all(stores: MemoryStores, run: str) -> Iterator[bool]:
    """Answer the open questions of a run and its child runs, and send it events; yield whether each was taken."""
    before = len(stores.tables.sent_events)
    send_some(stores.client, run)
    if len(stores.tables.sent_events) > before and stores.reads.status(run) == "paused":
        yield True
    for question in stores.reads.read_questions(run):
        if question.state == "open":
            yield stores.client.answer(question.key, packed(f"answer to {question.message}"))


def family(stores: MemoryStores, run: str) -> list[StoredRun]:
    """Return a run and all its child runs."""
    found = [stores.tables.runs[run]]
    for each in found:
        found += stores.tables.child_runs_of(each.ticket.run)
    return found


def ending_of(stores: MemoryStores, run: str) -> Ending:
    """Read how a run and its child runs have ended."""
    runs, steps = {}, {}
    for each in family(stores, run):
        name, context = each.ticket.run, stores.tables.scopes[each.ticket.run, each.ticket.root].context
        runs[name] = (each.status, each.output, context, each.fault and (each.fault.type_name, each.fault.message))
        for row in stores.tables.attempts_of(name):
            steps[str(row.key)] = (row.status, row.reason, row.output)
    return Ending(runs, steps)


def _difference(expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    names = sorted(expected.keys() | found.keys())
    return [
        f"{name}: expected {expected.get(name)}, found {found.get(name)}"
        for name in names
        if expected.get(name) != found.get(name)
    ]
