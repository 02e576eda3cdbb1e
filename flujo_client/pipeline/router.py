"""Routers: an agent chooses which branches run, and those run as a parallel's do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flujo_client.contract.limits import Limit
from flujo_client.pipeline.container import aliases
from flujo_client.pipeline.parallel import ParallelStep
from flujo_client.pipeline.step import AgentProcessors, StepConfig
from flujo_client.plan import kinds


@aliases(strategy="on_branch_failure")
@dataclass(frozen=True, eq=False, kw_only=True)
class DynamicParallelRouterStep(ParallelStep):
    """Run the branches that an agent chooses, in parallel.

    Args:
        router_agent: an agent, as for a step; it returns a branch name, or a list of them. It runs with this step's `config`, `plugins`,
            `validators`, `processing`, `processors`, `input`, `static_invariants`, `limit` and `queue`. Unknown names are ignored;
            without a known name, the step succeeds.

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
