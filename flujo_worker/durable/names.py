"""Name the units of a claim, the same in every claim: by their place, by their request, and by a count of equal requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from flujo_client.contract.outcome import NO_USAGE, Usage
from flujo_client.frozen import frozen
from flujo_client.serial import Packed
from flujo_worker.concurrency.call_context import setting
from flujo_worker.domain.budget import Amount
from flujo_worker.domain.units import Effect, Unit, UnitName
from flujo_worker.ports import ClaimId

FORM: Final = b"1"
"""The version of the form of digests: units of another form are not found."""


@frozen
class UnitCall:
    """A call that is a unit."""

    operation: str
    """Its name, which lasts over deploys."""
    asked: bytes
    """What is asked, as bytes."""
    effect: Effect | None = None
    """What it does outside; None: it may be repeated."""
    is_paid: bool = False
    """Whether it is a request, and a repetition would be paid for: it is announced before it is begun."""
    parts: Sequence[str] = ()
    """What a request asks in parts, each with a short digest."""
    usage: Callable[[Any], Usage] = lambda _: NO_USAGE
    """Returns what an answer has cost, given the unchanged answer."""
    in_doubt: Callable[[str], Awaitable[Any]] | None = None
    """Asks a person about the unit with this id, which began earlier and has no recorded answer. Returns its answer, or None to run it again. None: no question is needed."""
    model: str | None = None
    """Which a request asks, by its provider and name."""
    expected: Callable[[], Amount] = Amount
    """Estimates what an answer costs, which limits reserve before the request."""
    begin: Callable[[Unit], Awaitable[None]] | None = None
    """Waits until it may be asked, before it is announced."""


class _Scope(NamedTuple):
    """The agent run or unit that makes requests. `digest` includes its own request; `requester` does not, so that changed requests are found."""

    digest: bytes = b""
    requester: str = ""


_scope: ContextVar[_Scope] = ContextVar("flujo_unit_scope", default=_Scope())  # noqa: B039 - it cannot change


def scope() -> bytes:
    """Return the digest of the agent run or unit for which units are requested now."""
    return _scope.get().digest


class UnitNames:
    """Names the units of one claim; see `Journal`. Equal ones are counted in the order in which they come here.

    Attributes:
        places: where its units are recorded: the place of effects, and that of all others.
        requesters: the agent runs and units that have made requests.
    """

    def __init__(self, run: str, claim: ClaimId, place: str, first: int) -> None:
        self._run, self._claim = run, (claim.key, claim.fence or 0, claim.claim_id or "")
        self.places = self._of_step, self._of_chain = place, f"{place}:{first}"
        self.requesters = {""}
        self._counts, self._runs = Counter[bytes](), 0

    def unit_of(self, call: UnitCall) -> Unit:
        """Name a call. An effect is the same for every agent run at the step; any other call is one of a certain place in a certain run."""
        inside, place = (b"", self._of_step) if call.effect else (scope(), self._of_chain)
        digest = _digest(FORM, inside, call.operation.encode(), call.asked)
        name = UnitName(place, digest, int.from_bytes(self._counted(digest)))
        asked = Packed.of([_scope.get().requester, *call.parts])
        return Unit(self._run, name, *self._claim, call.operation, call.effect, asked, call.model)

    def ask_id(self, *what: bytes, is_effect: bool = False) -> str:
        """Name a question to a person. The name of one about an effect is the same in every attempt at the step, as is the effect's."""
        where = (self._of_step.encode(), b"") if is_effect else (self._of_chain.encode(), scope())
        digest = _digest(*where, b"ask", *what)
        return (digest + self._counted(digest)).hex()

    def next_run_id(self) -> str:
        """Return an id for the next run of an agent."""
        self._runs += 1
        return f"{self._run}:{self._of_chain}:{self._runs}"

    @contextmanager
    def agent_run(self, name: str, prompt: bytes) -> Iterator[None]:
        """Name the units in the block for this run of an agent; equal runs beside it have other names."""
        named = _digest(scope(), b"run", name.encode())
        asked = _digest(named, prompt)
        with self._inside(_digest(asked, self._counted(asked)), _digest(named, self._counted(named))):
            yield

    @contextmanager
    def inside(self, unit: Unit) -> Iterator[None]:
        """Name the units in the block for a unit."""
        digest = _digest(unit.name.digest, unit.name.nth.to_bytes(4))
        with self._inside(digest, digest):
            yield

    @contextmanager
    def _inside(self, digest: bytes, requester: bytes) -> Iterator[None]:
        inner = _Scope(digest, requester[:8].hex())
        self.requesters.add(inner.requester)
        with setting(_scope, inner):
            yield

    def _counted(self, digest: bytes) -> bytes:
        number = self._counts[digest]
        self._counts[digest] += 1
        return number.to_bytes(4)


def once_more(unit: Unit) -> Unit:
    """Return another name for a unit whose recorded answer is lost. That row stays unchanged."""
    return replace(unit, name=unit.name._replace(digest=_digest(unit.name.digest, b"lost")))


def _digest(*parts: bytes) -> bytes:
    """Digest parts, each with its length, so that none runs into the next."""
    made = blake2b(digest_size=16)
    for part in parts:
        made.update(len(part).to_bytes(8))
        made.update(part)
    return made.digest()
