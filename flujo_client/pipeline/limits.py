"""Which limits a run stands under, as its ticket carries them. Pure.

In words of a ticket: `run`, the first run of the tree, which the budgets are named after; `limits` of that tree; `tenant` and
`tenant_limits` of its day. A step's own limits stand with the step, whose code every worker has.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from flujo_client.contract.limits import UsageLimits, tightest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from flujo_client.pipeline.plan import Node, Plan
    from flujo_client.sections import Budgets


def in_force(
    budgets: Budgets, plan: Plan, own: UsageLimits | None, *, run: str, tenant: str = ""
) -> dict[str, Any] | None:
    """Combine what code and flujo.toml say by the smaller value of each field; None where nothing is limited.

    Args:
        budgets: the project's.
        plan: what is about to run.
        own: what the caller asks for.
        run: the run's id.
        tenant: whom it belongs to.
    """
    limits = tightest(own, _named(budgets.pipeline, plan.name) or budgets.default)
    of_tenant = tightest(_named(budgets.tenant, tenant) if tenant else None)
    if limits.is_nothing and of_tenant.is_nothing and not _has_limits(plan.nodes):
        return None
    return {
        "run": run,
        "limits": None if limits.is_nothing else limits.model_dump(),
        "tenant": tenant,
        "tenant_limits": None if of_tenant.is_nothing else of_tenant.model_dump(),
    }


def _named(table: Mapping[str, UsageLimits], name: str) -> UsageLimits | None:
    """The exact name counts, then the first pattern that fits (requirements §2.7)."""
    return table.get(name) or next((limits for pattern, limits in table.items() if fnmatchcase(name, pattern)), None)


def _has_limits(nodes: Iterable[Node]) -> bool:
    return any("usage_limits" in node.traits or any(map(_has_limits, node.bodies.values())) for node in nodes)
