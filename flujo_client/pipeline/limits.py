"""Find the limits of a run: its budgets, the names of its steps' concurrency limits, and the gates that it must pass. Pure.

A message has these limits: `run`, the first run of the tree, after which the budgets are named; `limits` of that tree; `tenant` and `tenant_limits`
of its day; `background`, the limits of each background run that the tree starts; and, in such a run, `task`, the path of its step in the plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args

from flujo_client.contract import admission
from flujo_client.contract.admission import START, Gate, Policy, RunLimit, Singleton, Throttle
from flujo_client.contract.limits import LONGEST_NAME, Limit, UsageLimits, tightest
from flujo_client.errors import ConfigurationError, FlujoError, NonRetryableError
from flujo_client.expressions.templates import Template, compile_template
from flujo_client.pipeline.compiled_text import TEMPLATE_NAMES, names_of
from flujo_client.plan import kinds
from flujo_client.sizes import MAX_WORD

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from flujo_client.config.models import AdmissionSettings, Budgets
    from flujo_client.pipeline.context_info import ContextInfo
    from flujo_client.plan.plan import Plan


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
    """Combine the limits of code and flujo.toml by the smaller value of each field; None if nothing is limited. `own` are the caller's."""
    if not isinstance(own, UsageLimits | None):
        raise ConfigurationError(f"`limits` must be a UsageLimits, got a {type(own).__name__}")
    limits = tightest(own, _limits_of_entry(of_pipeline(budgets, plan.name)))
    daily = tightest(_limits_of_entry(of_tenant(budgets, tenant)) if tenant else None)
    quota = background if any(node.spec is kinds.BACKGROUND for node in plan.nodes.walk()) else None
    has_own = any("usage_limits" in node.traits for node in plan.nodes.walk())
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
    """Return the limits of a background run, by those of the run that starts it: its quota in a separate budget, and its tenant's."""
    return None if limits is None else {**limits, "run": run, "limits": limits.get("background"), "task": path}


def of_pipeline(budgets: Budgets, name: str) -> Entry | None:
    """Find what counts for a pipeline: its own entry, else the first pattern that fits, else the default."""
    if (key := _key_of(budgets.pipeline, name)) is not None:
        return ("pipeline", key), budgets.pipeline[key]
    return None if budgets.default is None else (("default",), budgets.default)


def of_tenant(budgets: Budgets, name: str) -> Entry | None:
    """Find what counts for a tenant: its own entry, else the first pattern that fits."""
    key = _key_of(budgets.tenant, name)
    return None if key is None else (("tenant", key), budgets.tenant[key])


def _key_of(table: Mapping[str, Any], name: str) -> str | None:
    return name if name in table else next((pattern for pattern in table if fnmatchcase(name, pattern)), None)


def _limits_of_entry(entry: Entry | None) -> UsageLimits | None:
    return None if entry is None else entry[1]


TENANT: Final = "tenant"


@lru_cache(maxsize=4096)
def limit_template(text: str) -> Template:
    """Read the name of a limit, once per process; raises BlueprintTextError."""
    return compile_template(text, allowed=(*TEMPLATE_NAMES, TENANT), undefined="strict")


def is_per_value(limit: Limit) -> bool:
    """Return whether the name depends on the input or the context, and not on the tenant alone."""
    return any(path[0] != TENANT for path in limit_template(limit.name).names)


def limit_name(limit: Limit, value: Any, context: Any, tenant: str) -> str:
    """Fill in the name of a limit; raises TemplateResolutionError, or NonRetryableError if the name is empty or too long."""
    name = limit_template(limit.name).render({**names_of(value, context), TENANT: tenant}).strip()
    if not name or len(name) > LONGEST_NAME:
        message = f"the name of the limit '{limit.name:.80}' has {len(name)} characters once it is filled in; 1 to {LONGEST_NAME} are allowed"
        raise NonRetryableError(message, suggestion="name a short value, such as an id")
    return name


def scoped_name(limit: Limit, name: str, *, pipeline: str, run: str, provider: str | None) -> str:
    """Return the name under which an attempt is counted, with its scope; raises NonRetryableError for the scope `provider` if that is unknown."""
    if limit.scope == "global":
        return name
    if limit.scope == "provider":
        if provider is None:
            why = f"the limit '{name}' is counted for each model provider, and the step's agent asks none that is known"
            way_out = "give the limit another scope, or the step an agent with a model, such as openai:gpt-5"
            raise NonRetryableError(why, suggestion=way_out)
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


T = TypeVar("T")

ROOTS: Final = ("input", "tenant")
"""The names that the template of a key may read."""


@dataclass(frozen=True, slots=True)
class AdmissionOptions:
    """The options of `FlujoClient.enqueue` about a run's admission."""

    run_limits: Sequence[RunLimit] = ()
    singleton_key: str | None = None
    singleton: Singleton = "return"
    debounce_s: float | None = None
    debounce_key: str = ""
    throttle: Throttle | None = None
    delay_s: float | None = None
    at: datetime | str | None = None


def gates_of(
    settings: AdmissionSettings, options: AdmissionOptions, *, plan: Plan, tenant: str, value: Any, now: float
) -> tuple[Gate, ...]:
    """Return the gates of a run that is recorded `now`, by the plan's limits and the caller's; raises ConfigurationError, which names the option."""
    given: Any = options.run_limits
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ConfigurationError(f"`run_limits` must be a list of RunLimits, got a {type(given).__name__}")
    pipeline, of_plan = plan.name, [RunLimit(**each) for each in plan.run_limits or ()]
    options = replace(options, run_limits=[*of_plan, *given])
    share, own = _fitting(settings.tenant, tenant), _fitting(settings.pipeline, pipeline)
    weight, of_pipeline = (1.0 if share is None else share.weight), (1.0 if own is None else own.weight)
    gates = [*_begins_later(options, now), *_asked(options, pipeline=pipeline, tenant=tenant, value=value)]
    if own is not None and own.max_running is not None:
        gates.append(Gate(f"pipeline {pipeline}", own.max_running, is_window=True))
    gates = [replace(gate, flow=tenant, weight=weight) for gate in gates]
    most = settings.tenant_window and ceil(settings.tenant_window * weight)
    most = share.max_running if share is not None and share.max_running is not None else most
    if most is not None:
        name = f"tenant '{tenant}'" if tenant else "runs without a tenant"
        gates.append(Gate(name, most, flow=pipeline, weight=of_pipeline, is_window=True))
    return tuple(gates)


def _begins_later(options: AdmissionOptions, now: float) -> list[Gate]:
    """Return the gate at which a run waits for its time. It holds no place there, so nothing has to lock it."""
    if options.delay_s is None and options.at is None:
        return []
    from flujo_client.pipeline.sleep import read_seconds, read_time

    given = [name for name in ("delay_s", "at", "debounce_s") if getattr(options, name) is not None]
    if len(given) > 1:
        raise ConfigurationError(f"`{given[0]}` and `{given[1]}` both say when the run begins; give one of them")
    try:
        wait_s = read_seconds(options.delay_s) if options.at is None else max(0.0, read_time(options.at) - now)
    except ValueError as error:
        raise ConfigurationError(f"`{given[0]}` {error}") from None
    return [Gate(START, None, wait_s=wait_s, is_window=True)] if wait_s else []


def _asked(options: AdmissionOptions, *, pipeline: str, tenant: str, value: Any) -> list[Gate]:
    names = {"input": value, "tenant": tenant}
    of_tenant = f" of tenant '{tenant}'" if tenant else ""
    here, gates = f" of pipeline {pipeline}{of_tenant}", []
    if options.debounce_s is not None:
        admission.check_seconds("debounce_s", options.debounce_s)
        name = _rendered("debounce_key", options.debounce_key, names) if options.debounce_key else ""
        gates.append(Gate(f"debounce '{name}'{here}", None, policy="cancel_oldest", wait_s=options.debounce_s))
    elif options.debounce_key:
        raise ConfigurationError("`debounce_key` needs `debounce_s`: for how long the run waits for a later input")
    admission.check_choice("singleton", options.singleton, get_args(Singleton))
    if options.singleton_key is not None:
        admission.check_key("singleton_key", options.singleton_key)
        policies: dict[str, Policy] = {"return": "return", "queue": "queue", "replace": "cancel_oldest"}
        name = _rendered("singleton_key", options.singleton_key, names)
        gates.append(Gate(f"singleton '{name}'{here}", 1, policy=policies[options.singleton]))
    elif options.singleton != "return":
        raise ConfigurationError("`singleton` needs `singleton_key`: which runs are not to be under way at once")
    scopes = {"global": "", "pipeline": f" of pipeline {pipeline}", "tenant": of_tenant}
    for index, limit in enumerate(options.run_limits):
        if not isinstance(limit, RunLimit):
            raise ConfigurationError(f"run_limits[{index}] must be a RunLimit, got a {type(limit).__name__}")
        name = _rendered(f"run_limits[{index}].key", limit.key, names)
        gates.append(Gate(f"limit '{name}'{scopes[limit.scope]}", limit.most, policy=limit.on_full))
    if (throttle := options.throttle) is not None:
        if not isinstance(throttle, Throttle):
            raise ConfigurationError(f"`throttle` must be a Throttle, got a {type(throttle).__name__}")
        key = _rendered("throttle.key", throttle.key, names) if throttle.key else ""
        name = f"throttle '{key}'{here}"
        gates.append(Gate(name, throttle.most, period_s=throttle.period_s, policy=throttle.on_full))
    twice = {gate.name for gate in gates if [each.name for each in gates].count(gate.name) > 1}
    if twice:
        raise ConfigurationError(f"{min(twice)} is given twice; give each key one limit")
    return gates


def _fitting(table: Mapping[str, T], name: str) -> T | None:
    key = _key_of(table, name)
    return None if key is None else table[key]


def run_key(text: str) -> Template:
    """Read the template of a key; raises BlueprintTextError."""
    return compile_template(text, undefined="strict", allowed=ROOTS)


def _rendered(where: str, text: str, names: Mapping[str, Any]) -> str:
    try:
        key = run_key(text).render(names)
    except FlujoError as error:
        problem = f"the template {text[:80]!r} of `{where}` does not fit this run: {error.message}"
        raise ConfigurationError(problem, suggestion=error.suggestion, cause=error) from error
    if not 0 < len(key) <= MAX_WORD or not key.isprintable():
        raise ConfigurationError(f"`{where}` must give 1 to {MAX_WORD} printable characters, got {key[:80]!r}")
    return key
