"""What an attempt under limits reserves before it may call anybody, and what earlier attempts have cost.

Must not know where budgets are kept. In: an envelope, the code that it names, settings and the day. Out: one reservation for each
budget that the attempt is under, each of the same estimate.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from flujo_client.contract.limits import UsageEstimate, money
from flujo_worker.agents.factory import model_of, tools_of
from flujo_worker.domain.budget import Amount, Reservation, learned, place_of
from flujo_worker.observe.log import emit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Executor
    from datetime import date

    from flujo_client.config.models import Cost, Historical
    from flujo_client.contract.envelope import Envelope
    from flujo_client.contract.processing import PrecheckSettings
    from flujo_client.pipeline.step import Step
    from flujo_worker.agents.tool import AgentTool
    from flujo_worker.domain.budget import Place
    from flujo_worker.ports import Ledger
    from flujo_worker.user_code.code_registry import LoadedPipeline

logger = logging.getLogger(__name__)

_BUILT_IN = (
    (re.compile(r"(?i)\bgpt-?4"), UsageEstimate(cost_usd=0.10, tokens=500)),
    (re.compile(r"(?i)\bgpt-?3\.5"), UsageEstimate(cost_usd=0.02, tokens=300)),
)
"""By the model's name; any other is expected to cost nothing, so it is held to its limits when it settles."""


@dataclass(frozen=True, slots=True)
class ExpectedCall:
    """One call that an attempt may make, and what it is expected to cost: the agent's, one of its tools', or one of the precheck's."""

    name: str
    expected: UsageEstimate


def calls_of(
    step: Step,
    precheck: PrecheckSettings | None,
    cost: Cost,
    *,
    agent_of: Callable[[Any], Any],
    known: UsageEstimate | None = None,
) -> list[ExpectedCall]:
    """List the calls that an attempt may make, the agent's first, each agent that is its tool once.

    Args:
        step: the step.
        precheck: its reasoning precheck, if AROS acts on it.
        cost: the project's estimates.
        agent_of: finds the live agent of a reference.
        known: what whole attempts at the step have cost, the precheck's calls too; None where that is not to count, or not known.
    """
    calls = [ExpectedCall("agent", estimate(step, known or _of_model(_model(step.agent, agent_of), cost)))]
    if known is not None:
        return calls
    tools = _tools(step.agent, agent_of)
    calls += [ExpectedCall(each.name, _of_model(_model(each.agent, agent_of), cost)) for each in tools]
    if precheck is None or not precheck.enabled:
        return calls
    requested = [("consensus", precheck.consensus_agent)] * precheck.consensus_samples
    for name, agent in (*requested, ("validator", precheck.validator_agent)):
        if agent is not None:
            usual = _of_model(_model(agent, agent_of), cost)
            calls.append(ExpectedCall(name, usual.model_copy(update={"tokens": precheck.max_tokens})))
    return calls


def reservations(
    envelope: Envelope, entry: LoadedPipeline, path: str, calls: Sequence[ExpectedCall], day: date
) -> list[Reservation]:
    """Return what the attempt asks for, all its calls together; nothing where no limit is over it.

    Args:
        envelope: of an attempt at a step.
        entry: its pipeline.
        path: of its step in the plan.
        calls: that it may make.
        day: today, UTC, for the tenant's budget.
    """
    limits: Mapping[str, Any] = envelope.ticket.limits or {}
    parts = [Amount(money(each.expected.cost_usd), each.expected.tokens) for each in calls]
    requested = sum(parts, Amount())
    return [_reservation(scope, each, requested) for scope, each in _scopes(limits, entry, path, day)]


def emit_reservations(calls: Sequence[ExpectedCall]) -> None:
    """Tell each call's own share of the reservation, where there is more than the agent's."""
    for each in calls if len(calls) > 1 else ():
        emit("flujo.budget.reserved", call=each.name, cost_usd=each.expected.cost_usd, tokens=each.expected.tokens)


def estimate(step: Step, known: UsageEstimate) -> UsageEstimate:
    """Expect what the step says, else what is known otherwise."""
    config = step.config
    tokens = config.max_tokens if config.expected_tokens is None else config.expected_tokens
    return UsageEstimate(
        cost_usd=known.cost_usd if config.expected_cost_usd is None else config.expected_cost_usd,
        tokens=known.tokens if tokens is None else tokens,
    )


def _model(agent: Any, agent_of: Callable[[Any], Any]) -> str:
    try:
        return str(model_of(agent_of(agent)) or "")
    except Exception:  # noqa: BLE001 - an agent that cannot be found or made fails its attempt, where that is told
        return ""


def _tools(agent: Any, agent_of: Callable[[Any], Any]) -> list[AgentTool]:
    try:
        return list(tools_of(agent_of(agent)))
    except Exception:  # noqa: BLE001 - as above
        return []


def _of_model(model: str, cost: Cost) -> UsageEstimate:
    """Expect what the project says of a model, else what is built in."""
    named = cost.estimators.get(model) or next(
        (each for pattern, each in cost.estimators.items() if fnmatchcase(model, pattern)), None
    )
    return named or next((each for pattern, each in _BUILT_IN if pattern.search(model)), UsageEstimate())


def _scopes(
    limits: Mapping[str, Any], entry: LoadedPipeline, path: str, day: date
) -> Iterator[tuple[str, Mapping[str, float | None]]]:
    run = limits.get("run", "")
    if limits.get("limits"):
        yield f"run:{run}", limits["limits"]
    if limits.get("tenant_limits"):
        yield f"tenant:{limits['tenant']}:{day:%Y-%m-%d}", limits["tenant_limits"]
    parts = path.split("/")
    for end in range(1, len(parts) + 1, 2):  # a node, the key of a body, a node in it
        above = "/".join(parts[:end])
        own = entry.steps[above].usage_limits if len(above) > len(limits.get("task", "")) else None
        if own is not None and not own.is_nothing:
            yield f"step:{run}:{above}", own.model_dump()


def _reservation(scope: str, limits: Mapping[str, Any], requested: Amount) -> Reservation:
    usd, tokens = limits["total_cost_usd_limit"], limits["total_tokens_limit"]
    return Reservation(scope, requested, None if usd is None else money(usd), tokens)


class History:
    """Expects of an attempt what those before it have cost. Safe for several threads.

    It does not make an attempt wait: what is not known yet, or too old, is read in a thread, once for each pipeline, and counts from the
    next attempt on. A store that does not answer leaves what was known.

    Args:
        ledger: where spending is kept.
        wanted: how much of it counts.
        threads: where it is read.
        clock: seconds that never go back.
    """

    def __init__(
        self, ledger: Ledger, wanted: Historical, threads: Executor, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ledger, self._wanted, self._threads, self._clock = ledger, wanted, threads, clock
        self._known: dict[str, dict[Place, UsageEstimate]] = {}
        self._read_at: dict[str, float] = {}
        self._lock = threading.Lock()

    def expected(self, envelope: Envelope) -> UsageEstimate | None:
        """Return what attempts at this place have cost, if that is known by now."""
        reference = envelope.ticket.reference
        if self._is_due(reference):
            self._threads.submit(self._read, reference)
        return self._known.get(reference, {}).get(place_of(envelope.address, envelope.step))

    def _is_due(self, reference: str) -> bool:
        """Tell whether to read; to one of those who ask at once."""
        with self._lock:
            now, before = self._clock(), self._read_at.get(reference)
            if before is not None and now - before < self._wanted.refresh_s:
                return False
            self._read_at[reference] = now
            return True

    def _read(self, reference: str) -> None:
        try:
            spent = self._ledger.spent_lately(reference, self._wanted.runs)
            self._known[reference] = learned(spent, least=self._wanted.attempts, quantile=self._wanted.quantile)
        except Exception:
            logger.warning("the cost of attempts of %s could not be read", reference, exc_info=True)
