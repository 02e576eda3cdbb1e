"""Which limits a run is under, as its ticket carries them, and the names of its steps' concurrency limits. Pure.

In words of a ticket: `run`, the first run of the tree, which the budgets are named after; `limits` of that tree; `tenant` and
`tenant_limits` of its day; `background`, the limits of each run in the background that is begun in the tree; in such a run `task`, the
path of the step that it is. A step's own limits are stored with the step, whose code every worker has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from flujo_client.contract.limits import LONGEST_NAME, Limit, UsageLimits, tightest
from flujo_client.errors import FlujoError, NonRetryableError
from flujo_client.expressions.templates import Template, compile_template
from flujo_client.pipeline.compiled_text import TEMPLATE_NAMES, names_of
from flujo_client.plan import kinds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flujo_client.config.models import Budgets
    from flujo_client.pipeline.context_info import ContextInfo
    from flujo_client.plan.plan import Node, Plan


Entry = tuple[tuple[str, ...], UsageLimits]
"""The key of an entry of `[budgets]`, and its limits."""


def in_force(
    budgets: Budgets,
    plan: Plan,
    own: UsageLimits | None,
    *,
    run: str,
    tenant: str = "",
    background: UsageLimits | None = None,
) -> dict[str, Any] | None:
    """Combine the limits of code and flujo.toml by the smaller value of each field; None if nothing is limited.

    `own` are the caller's limits, `background` those of each of its background steps.
    """
    limits = tightest(own, _limits_of_entry(of_pipeline(budgets, plan.name)))
    daily = tightest(_limits_of_entry(of_tenant(budgets, tenant)) if tenant else None)
    quota = background if _any(plan.nodes, lambda node: node.spec is kinds.BACKGROUND) else None
    has_own = _any(plan.nodes, lambda node: "usage_limits" in node.traits)
    if limits.is_nothing and daily.is_nothing and quota is None and not has_own:
        return None
    found = {
        "run": run,
        "limits": None if limits.is_nothing else limits.model_dump(),
        "tenant": tenant,
        "tenant_limits": None if daily.is_nothing else daily.model_dump(),
    }
    return found if quota is None else found | {"background": quota.model_dump()}


def of_task(limits: Mapping[str, Any] | None, run: str, path: str) -> dict[str, Any] | None:
    """Return the limits of a background run: its quota in a separate budget, and its tenant's.

    `limits` are those of the run that begins it, `path` is that of its step in the plan; limits of containers around it belong to the other run.
    """
    return None if limits is None else {**limits, "run": run, "limits": limits.get("background"), "task": path}


def of_pipeline(budgets: Budgets, name: str) -> Entry | None:
    """Find what counts for a pipeline: its own entry, else the first pattern that fits, else the default."""
    if found := _entry("pipeline", budgets.pipeline, name):
        return found
    return None if budgets.default is None else (("default",), budgets.default)


def of_tenant(budgets: Budgets, name: str) -> Entry | None:
    """Find what counts for a tenant: its own entry, else the first pattern that fits."""
    return _entry("tenant", budgets.tenant, name)


def _entry(kind: str, table: Mapping[str, UsageLimits], name: str) -> Entry | None:
    fitting = (pattern for pattern in table if fnmatchcase(name, pattern))
    key = name if name in table else next(fitting, None)
    return None if key is None else ((kind, key), table[key])


def _limits_of_entry(entry: Entry | None) -> UsageLimits | None:
    return None if entry is None else entry[1]


def _any(nodes: Iterable[Node], is_so: Callable[[Node], bool]) -> bool:
    return any(is_so(node) or any(_any(body, is_so) for body in node.bodies.values()) for node in nodes)


TENANT: Final = "tenant"


@lru_cache(maxsize=4096)
def limit_template(text: str) -> Template:
    """Read the name of a limit, once per process; raises BlueprintTextError."""
    return compile_template(text, allowed=(*TEMPLATE_NAMES, TENANT), undefined="strict")


def is_per_value(limit: Limit) -> bool:
    """Return whether the name depends on the input or the context, and not on the tenant alone."""
    return any(path[0] != TENANT for path in limit_template(limit.name).names)


def limit_name(limit: Limit, value: Any, context: Any, tenant: str) -> str:
    """Fill in the name of a limit.

    Raises:
        TemplateResolutionError: the input or the context lacks what it names.
        NonRetryableError: the name is empty or too long.
    """
    name = limit_template(limit.name).render({**names_of(value, context), TENANT: tenant}).strip()
    if not name or len(name) > LONGEST_NAME:
        raise NonRetryableError(
            f"the name of the limit '{limit.name:.80}' has {len(name)} characters once it is filled in; 1 to {LONGEST_NAME} are allowed",
            suggestion="name a short value, such as an id",
        )
    return name


def scoped_name(limit: Limit, name: str, *, pipeline: str, run: str, provider: str | None) -> str:
    """Return the name under which an attempt is counted: the limit's name, filled in, with its scope.

    Raises:
        NonRetryableError: the scope is `provider`, and the provider of the step's model is unknown.
    """
    if limit.scope == "global":
        return name
    if limit.scope == "provider":
        if provider is None:
            raise NonRetryableError(
                f"the limit '{name}' is counted for each model provider, and the step's agent asks none that is known",
                suggestion="give the limit another scope, or the step an agent with a model, such as openai:gpt-5",
            )
        return f"{name} of {provider}"
    return f"{name} of pipeline {pipeline}" if limit.scope == "pipeline" else f"{name} of {run}"


def limit_findings(limit: Any, place: ContextInfo) -> Iterator[str]:
    """Find what is wrong with a step's limit."""
    if limit is None:
        return
    if not isinstance(limit, Limit):
        yield f'limit must be a Limit, such as Limit("crm", 5), got a {type(limit).__name__}'
        return
    try:
        read = limit_template(limit.name).names
    except FlujoError as error:
        yield f"limit: {error.message}"
        return
    for path in sorted(read):
        if path[0] == "context":
            yield from place.lacks("limit", path[1] if len(path) > 1 else None)
