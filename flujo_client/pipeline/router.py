"""Routers: an agent chooses which branches run, and those run as a parallel's do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flujo_client.contract import kinds
from flujo_client.contract.limit import Limit
from flujo_client.pipeline.container import aliases
from flujo_client.pipeline.parallel import ParallelStep
from flujo_client.pipeline.step import AgentProcessors, StepConfig


@aliases(strategy="on_branch_failure")
@dataclass(frozen=True, eq=False, kw_only=True)
class DynamicParallelRouterStep(ParallelStep):
    """Ask an agent which branches are to run, then run those side by side. What it writes is merged by default.

    Args:
        router_agent: an agent as a step's; it answers a list of branch names, or one name. It is performed as a step with this
            one's `config`, `plugins`, `validators`, `processing`, `processors`, `input`, `static_invariants`,
            `limit` and `queue`. Names of no branch are left out; no name is a success.

    The other arguments are those of a `ParallelStep`.
    """

    spec = kinds.ROUTER

    router_agent: Any
    config: StepConfig = field(default_factory=StepConfig)
    plugins: Sequence[Any] = ()
    validators: Sequence[Any] = ()
    queue: str | None = None
    processing: Mapping[str, Any] | None = None
    processors: AgentProcessors = field(default_factory=AgentProcessors)
    input: str | None = None
    static_invariants: Sequence[Any] = ()
    limit: Limit | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "agent", self.router_agent)
