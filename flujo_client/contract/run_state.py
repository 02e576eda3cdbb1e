"""A run's state, as far as it decides whether it may continue under another plan, and a difference's position relative to it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from flujo_client.contract.records import LIVE_RUN, OPEN_ATTEMPT, SEQUENCE
from flujo_client.plan.plan_difference import Difference

if TYPE_CHECKING:
    from flujo_client.plan.plan import Nodes, Plan

Position = Literal["before", "at", "after"]
"""The place of a difference, relative to the run's present step."""


class ScopePlace(NamedTuple):
    """The state of one scope of a run; `cursor` is the place of the step that a sequence is at."""

    address: str
    kind: str
    status: str
    cursor: int
    version: int


class AttemptPlace(NamedTuple):
    """One attempt of a run, whether it has ended or not."""

    key: str
    address: str
    step: str
    number: int
    kind: str
    status: str
    fence: int


@dataclass(frozen=True, slots=True)
class RunState:
    """A run's state, as far as it decides whether it may continue under another plan."""

    run: str
    reference: str
    fingerprint: str
    status: str
    root: str
    """The address at which it begins: empty, or a body's for a child run."""
    queue: str
    """The queue of its steps that name none."""
    scopes: tuple[ScopePlace, ...] = ()
    """All of its scopes, closed ones too, by address."""
    attempts: tuple[AttemptPlace, ...] = ()
    """All of its attempts, by key."""

    @classmethod
    def of_row(cls, run: str, row: Mapping[str, Any]) -> RunState:
        """Read a row of `run_state.sql`."""
        scopes = tuple(ScopePlace(*each) for each in row["scopes"])
        attempts = tuple(AttemptPlace(*each) for each in row["attempts"])
        names = ("reference", "fingerprint", "status", "root", "queue")
        return cls(run, **{name: row[name] for name in names}, scopes=scopes, attempts=attempts)

    @property
    def has_ended(self) -> bool:
        """Return whether the run can move no more."""
        return self.status not in LIVE_RUN

    @property
    def open_attempts(self) -> Iterator[AttemptPlace]:
        """Yield the attempts that have not ended."""
        return (each for each in self.attempts if each.status in OPEN_ATTEMPT)


Stance = Literal["coming", "open", "asked", "closed"]
"""The state of a sequence at its step: it has merged nothing of it, has a container open there, waits for a person there, or has ended."""


class RunPosition:
    """The position of a run in its plan, by the paths of the bodies it has begun.

    Args:
        plan: the plan the run uses.
        state: its rows.
    """

    def __init__(self, plan: Plan, state: RunState) -> None:
        self.plan, self.stances = plan, dict[str, set[tuple[int, Stance]]]()
        self.open_containers: set[str] = set()
        asked = {each.address for each in state.open_attempts if each.kind == "resume"}
        busy = {
            each.address.rpartition("/")[0] for each in state.scopes if each.status == "open" and each.kind != SEQUENCE
        }
        for scope in state.scopes:
            try:
                container, nodes, _ = plan.locate(scope.address)
            except KeyError:  # it closed before the run came under this plan, which has another name for it
                continue
            if scope.kind != SEQUENCE or nodes is None:
                if container is not None and scope.status == "open":
                    self.open_containers.add(container.path)
                continue
            stance: Stance = "open" if scope.address in busy else "asked" if scope.address in asked else "coming"
            if scope.status != "open":
                stance = "closed"
            place = len(nodes) if stance == "closed" else scope.cursor
            self.stances.setdefault(body_path(nodes), set()).add((place, stance))

    def position(self, difference: Difference) -> Position:
        """Return where a difference is, seen from the run: before what it is at, at it, or after. It has its context with it."""
        if not difference.step and difference.aspect.startswith("context"):
            return "at"
        for body, place in reversed(difference.around):
            stances = self.stances.get(body)
            if stances is None:
                continue
            is_own = body == difference.body
            if not is_own and self._has_begun_other_bodies(difference, body):
                return "after"
            found = {_position(difference if is_own else None, place, *each) for each in stances}
            return "before" if "before" in found else "at" if "at" in found else "after"
        return "after"

    def stance_at(self, difference: Difference) -> set[Stance]:
        """Return the stances of the sequences that are at the step that differs."""
        return {stance for place, stance in self.stances.get(difference.body, ()) if place == difference.place}

    def _has_begun_other_bodies(self, difference: Difference, body: str) -> bool:
        """Return whether the container in `body` that holds the difference has run bodies, none of which is the one that differs."""
        inner = difference.around[[path for path, _ in difference.around].index(body) + 1][0]
        container = inner.rpartition("/")[0] + "/"
        return any(path.startswith(container) for path in self.stances)


def _position(difference: Difference | None, place: int, at: int, stance: Stance) -> Position:
    """Return where `place` of a body is, relative to a sequence at `at`; without a `difference`, of something inside a step."""
    if place != at:
        return "before" if place < at else "after"
    if difference is None:
        return "after"
    if difference.what == "added" and difference.key is None and not difference.aspect:
        return "after" if stance == "coming" else "before"
    return "at"


def body_path(nodes: Nodes) -> str:
    """Return the path of the body that some nodes are; they are not empty."""
    return nodes[0].path.rpartition("/")[0]
