"""Rows as an engine records them, made from shapes: what results and traces are read from. Pure; the clock may stand still.

A shape is a tree of nodes. Each is recorded as the engine does it: scopes open before what stands in them, a container that comes
first in its scope has a start row, a fan-out a join row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from builders import packed

from flujo_client.contract.outcome import Fault
from flujo_client.contract.run import AttemptRecord, EventRecord, RunRecord, ScopeRecord

NOW = datetime(2026, 1, 1, tzinfo=UTC)
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
    """A container. `children` are lists of nodes; a child that holds a failed step has failed."""

    name: str
    kind: str
    children: list[list[S | C]] = field(default_factory=list)
    names: tuple[str, ...] = ()
    ok: bool = True
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
        self._nodes("", nodes, {})
        return self

    def read(self, reader, run, **rest):
        return reader(run, self.attempts, self.scopes, **rest)

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
        if nodes and isinstance(nodes[0], C) and nodes[0].kind != "router":
            self.attempt(address, nodes[0].name, kind="start")
        return all([self._node(address, place, each, lanes) for place, each in enumerate(nodes)])

    def _node(self, address, place, node, lanes):
        if isinstance(node, S):
            return self._step(address, node)
        if node.kind == "router":
            self.attempt(address, node.name, output=packed(list(node.names)))
        box = f"{address}/{node.name}" if address else node.name
        own = ScopeRecord(box, "open", self.now, address, node.kind, node.name, node.name, place, lanes=lanes)
        index = self._open(own)
        ok = all([self._child(own, number, node, lanes) for number in range(len(node.children))])
        if node.is_fan_out and node.children:
            self.attempt(box, node.name, kind="join")
        done = node.ok and (ok or node.is_fan_out)
        self._close(index, ok=done, said=f"{node.name} broke", metadata=node.metadata)
        return done

    def _child(self, own, number, node, lanes):
        by_number = node.kind in ("loop", "map")
        name = node.names[number] if node.names else f"{node.name}#{number + 1}" if by_number else f"c{number}"
        suffix = f"#{number + 1}" if by_number else f"#{number + 1}/{name}" if node.kind == "machine" else f"/{name}"
        inside = {**lanes, own.address: number} if node.is_fan_out else lanes
        address = own.address + suffix
        place = number + by_number
        row = ScopeRecord(address, "open", self.now, own.address, "sequence", node.name, name, place, lanes=inside)
        index = self._open(row)
        ok = self._nodes(address, node.children[number], inside)
        self._close(index, ok=ok, said=f"{name} broke")
        return ok

    def _step(self, address, step):
        for number in range(1, step.tries + 1):
            ok = step.ok and number == step.tries
            given = {"output": packed(step.output)} if ok else {"fault": fault(f"{step.name} broke")}
            self.attempt(address, step.name, number, status="succeeded" if ok else "failed", **given)
        return step.ok

    def _open(self, row):
        self.scopes.append(row)
        return len(self.scopes) - 1

    def _close(self, index, *, ok, said, metadata=None):
        row = self.scopes[index]
        changes = {
            "status": "succeeded" if ok else "failed",
            "closed_at": self.now,
            "output": packed(f"{row.name} gave"),
            "fault": None if ok else fault(said),
            "metadata": metadata or {},
        }
        self.scopes[index] = ScopeRecord(
            **{name: getattr(row, name) for name in ScopeRecord.__slots__ if name not in changes}, **changes
        )
