"""Rows as an engine records them, made from shapes: what results and traces are read from. Pure; the clock may stand still.

A shape is a tree of nodes. Each is recorded as the engine does it: scopes open before what is in them, a container that comes
first in its scope has a start row, a fan-out a join row; branches take turns, and a failed node stops its sequence.
`FLUJO_EXAMPLES` in the environment says how many of them a property is tried on.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

from flujo_client.contract.outcome import Fault
from flujo_client.contract.records import AttemptRecord, EventRecord, RunRecord, ScopeRecord
from tests.support.breadth import examples
from tests.support.builders import packed

EXAMPLES = examples(50)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
KINDS = ("loop", "map", "parallel", "router", "conditional", "nested", "machine")
FAN_OUTS = ("parallel", "router")


def run(status="succeeded", **rest):
    return RunRecord("run_1", "m:p", "f" * 64, "orders", "1", status, NOW, **rest)


def fault(said):
    return Fault("agent", "ValueError", said, said)


@dataclass
class S:
    """A step: how often it is tried, and whether the last try succeeds."""

    name: str
    tries: int = 1
    ok: bool = True
    output: object = "out"


@dataclass
class C:
    """A container. `children` are lists of nodes. A failed child fails it, unless it ignores that."""

    name: str
    kind: str
    children: list[list[S | C]] = field(default_factory=list)
    names: tuple[str, ...] = ()
    ignores: bool = False
    is_parallel: bool = False
    metadata: dict = field(default_factory=dict)

    @property
    def is_fan_out(self):
        return self.is_parallel or self.kind in FAN_OUTS


class Recorder:
    """Plays shapes. Each try spends 10 tokens and a quarter of a dollar, and takes a second."""

    def __init__(self, *, tick_s=1.0):
        self.now, self.tick = NOW, timedelta(seconds=tick_s)
        self.attempts, self.scopes, self.events = [], [ScopeRecord("", "open", NOW)], []

    def play(self, *nodes):
        _finish(self._nodes("", nodes, {}))
        return self

    def attempt(self, address, step, number=1, kind="step", status="succeeded", **rest):
        key = f"run_1:{address}:{step}:{number if kind == 'step' else kind}"
        began = self.now
        self.now += self.tick
        done = None if status in ("ready", "queued", "running") else self.now
        spends = {"tokens": 10, "cost_usd": 0.25, "latency_s": 1.0} if kind == "step" else {}
        self.attempts.append(
            AttemptRecord(
                key, address, step, number, kind, status, began, started_at=began, ended_at=done, **{**spends, **rest}
            )
        )
        self.events.append(EventRecord(len(self.events) + 1, self.now, "run_1", "it.ended", "info", key, {}))

    def _nodes(self, address, nodes, lanes):
        """Play a sequence, one attempt at a time; give the fault that stopped it."""
        if nodes and isinstance(nodes[0], C) and nodes[0].kind != "router":
            self.attempt(address, nodes[0].name, kind="start")
            yield
        for place, node in enumerate(nodes):
            play = self._step(address, node) if isinstance(node, S) else self._container(address, place, node, lanes)
            failed = yield from play
            if failed is not None:
                return failed
        return None

    def _step(self, address, step):
        for number in range(1, step.tries + 1):
            ok = step.ok and number == step.tries
            given = {"output": packed(step.output)} if ok else {"fault": fault(f"{step.name} broke")}
            self.attempt(address, step.name, number, status="succeeded" if ok else "failed", **given)
            yield
        return None if step.ok else fault(f"{step.name} broke")

    def _container(self, address, place, node, lanes):
        if node.kind == "router":
            self.attempt(address, node.name, output=packed(list(node.names)), metadata={"selection": list(node.names)})
            yield
        box = f"{address}/{node.name}" if address else node.name
        index = self._open(box, address, node.kind, node.name, node.name, place, lanes=lanes)
        play = self._side_by_side if node.is_fan_out else self._one_by_one
        failed = yield from play(box, node, lanes)
        if node.is_fan_out and node.children:
            self.attempt(box, node.name, kind="join")
            yield
        return self._close(index, None if node.ignores else failed, node.metadata)

    def _one_by_one(self, box, node, lanes):
        for number in range(len(node.children)):
            failed = yield from self._child(box, number, node, lanes)
            if failed is not None:
                return failed
        return None

    def _side_by_side(self, box, node, lanes):
        playing = [self._child(box, number, node, {**lanes, box: number}) for number in range(len(node.children))]
        faults = []
        while playing:
            for each in list(playing):
                try:
                    next(each)
                except StopIteration as end:
                    playing.remove(each)
                    faults += [] if end.value is None else [end.value]
            yield
        return faults[0] if faults else None

    def _child(self, box, number, node, lanes):
        by_number = node.kind in ("loop", "map")
        name = node.names[number] if node.names else f"{node.name}#{number + 1}" if by_number else f"c{number}"
        suffix = f"#{number + 1}" if by_number else f"#{number + 1}/{name}" if node.kind == "machine" else f"/{name}"
        index = self._open(box + suffix, box, "sequence", node.name, name, number + by_number, lanes=lanes)
        return self._close(index, (yield from self._nodes(box + suffix, node.children[number], lanes)))

    def _open(self, address, *rest, **lanes):
        self.scopes.append(ScopeRecord(address, "open", self.now, *rest, output=packed("what went in"), **lanes))
        return len(self.scopes) - 1

    def _close(self, index, failed, metadata=None):
        row = self.scopes[index]
        self.scopes[index] = replace(
            row,
            status="failed" if failed else "succeeded",
            closed_at=self.now,
            output=row.output if failed else packed(f"{row.name} gave"),
            fault=failed and fault(f"in {row.name}: {failed.feedback}"),
            metadata=metadata or {},
        )
        return self.scopes[index].fault


def _finish(playing):
    for _ in playing:
        pass


def distinct(nodes):
    """One node of each name."""
    return list({node.name: node for node in nodes}.values())


def _containers(inner):
    sequences = st.lists(inner, min_size=1, max_size=3).map(distinct)
    children = st.lists(sequences, max_size=3)
    return st.builds(C, st.sampled_from("mnop"), st.sampled_from(KINDS), children, ignores=st.booleans())


_steps = st.builds(S, st.sampled_from("abcd"), tries=st.integers(1, 2), ok=st.sampled_from([True, True, False]))
pipelines = st.lists(st.recursive(_steps, _containers, max_leaves=12), min_size=1, max_size=3).map(distinct)
