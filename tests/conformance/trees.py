"""Small makers of decisions that reach beyond one scope: a fan-out that opens, branches that close, joins. Made by hand, so that the
stores are held to what `Decision` says and not to what deciding happens to ask today.
"""

from __future__ import annotations

from typing import Any

from worlds import World

from flujo_client.address import AttemptKey
from flujo_client.contract.envelope import Envelope
from flujo_client.contract.outcome import Outcome
from flujo_worker.domain.values import (
    AttemptReport,
    BranchClosed,
    CloseAttempt,
    Decision,
    FanOut,
    NextAttempt,
    ScopeRow,
    UpdateScope,
)
from tests.support.builders import enqueued, envelopes, packed, pipeline_of, succeeded

FAN = "f"


def concluded(
    at: Envelope,
    *moves: UpdateScope,
    fence: int = 1,
    outcome: Outcome | None = None,
    close: str = "succeeded",
    **rest: Any,
) -> Decision:
    """An attempt ends, and these scopes move."""
    reason = None if close == "succeeded" else "aborted" if close == "cancelled" else "error"
    return Decision(AttemptReport(at, fence, outcome or succeeded()), CloseAttempt(close, reason), moves, **rest)


def moved(row: ScopeRow | Envelope, **changes: Any) -> UpdateScope:
    """A scope moves; it stays as it is but for the changes."""
    return UpdateScope(row.address, row.version, changes.pop("cursor", getattr(row, "cursor", 0)), **changes)


def opening(address: str, parent: str, **rest: Any) -> ScopeRow:
    """A scope is opened; a sequence with the input 1 and the context {"n": 1} unless said otherwise."""
    given = {"kind": "sequence", "step": FAN, "name": address, "place": 0, "lanes": {}, "output": packed(1)}
    return ScopeRow(address, parent, **{"context": packed({"n": 1}), **given, **rest})


def work(scope: ScopeRow, step: str = "s", *, held: bool = False, **rest: Any) -> NextAttempt:
    """A first work row for a scope that is opened."""
    given = {"input": scope.output, "context": scope.context, "version": 0, "lanes": scope.lanes}
    return NextAttempt(scope.address, step, 1, "flujo.attempts", held=held, **{**given, **rest})


def fanning_out(
    at: Envelope, branches: int, *, lanes: int | None = None, address: str = FAN, fence: int = 1, **move: Any
) -> Decision:
    """`at` comes to a fan-out that begins: its scope, its branches, a row for each; those without a lane are held."""
    strands = lanes or branches
    box = opening(address, at.address, kind="parallel", name=FAN, waiting=True, lanes=dict(at.lanes))
    arms = [
        opening(
            f"{address}/b{place}", address, name=f"b{place}", place=place, lanes={**at.lanes, address: place % strands}
        )
        for place in range(branches)
    ]
    rows = [work(arm, held=place >= strands) for place, arm in enumerate(arms)]
    fan_out = FanOut(address, strands)
    return concluded(at, moved(at, **move), fence=fence, opens=(box, *arms), next=tuple(rows), fan_out=fan_out)


def fanned_out(world: World, branches: int = 3, *, lanes: int | None = None) -> list[Envelope]:
    """A run whose first attempt has opened the fan-out `f`; the envelopes of its branches, held ones too."""
    new = world.record(enqueued(pipeline_of("a", FAN), context={"n": 0}))
    decision = fanning_out(new.first, branches, lanes=lanes, fence=world.claim(new))
    assert world.commit(decision) == "merged"
    return envelopes(decision)


def closing(at: Envelope, *, fence: int = 1, status: str = "succeeded", lane: int = 0, **end: Any) -> Decision:
    """A branch of one step closes with the attempt `at`."""
    fan_out, close = at.address.rsplit("/", 1)[0], status if status != "open" else "succeeded"
    patch = packed({"at": at.address}) if status == "succeeded" else None
    move = moved(at, cursor=1, status=status, merges=True, output=packed(at.address), drops_context=True, patch=patch)
    branch_end = BranchClosed(at.address, fan_out, lane, **end)
    return concluded(at, move, fence=fence, close=close, branch_end=branch_end)


def close_all(world: World, arms: list[Envelope]) -> None:
    """Run these branches to their end."""
    for arm in arms:
        assert world.commit(closing(arm, fence=world.claim(arm))) == "merged"


def join_of(arm: Envelope, fan_out: str = FAN) -> str:
    """The key of the join's work row."""
    return str(AttemptKey(arm.ticket.run, fan_out, FAN, 1, "join"))


def signal_join(world: World, arm: Envelope, by: str = "worker", fan_out: str = FAN) -> bool:
    """Signal the join of a fan-out."""
    return world.stores.scopes.signal_join(arm.ticket.run, fan_out, "flujo.control", by)


def joined(world: World, arm: Envelope) -> Envelope:
    """Signal a join, and return its envelope."""
    assert signal_join(world, arm)
    [envelope] = world.stores.backlog.envelopes([join_of(arm)])
    return envelope


ASKED = {"message": "go?", "schema": {"type": "string"}, "expires_s": None}


def asking(at, *, fence=1, expires_s=0.0, question=ASKED, **rest):
    """An attempt ends at a question in its own scope."""
    given = {"input": at.input, "context": at.context, "version": at.version, "lanes": dict(at.lanes)}
    wait = NextAttempt(
        at.address, "ask", 1, "flujo.attempts", kind="resume", question=question, delay_s=expires_s, **given
    )
    return concluded(at, moved(at), fence=fence, next=(wait,), **rest)
