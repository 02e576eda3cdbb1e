"""Which gates a run has to pass. Pure.

In: the project's `[admission]`, what enqueue was given, and the run's input. Out: the gates, in the order in which they are looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from math import ceil
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args

from flujo_client.contract.admission import (
    Gate,
    Policy,
    RunLimit,
    Singleton,
    Throttle,
    check_choice,
    check_key,
    check_seconds,
)
from flujo_client.errors import BlueprintTextError, ConfigurationError, TemplateResolutionError
from flujo_client.expressions.templates import Template, compile_template
from flujo_client.sizes import MAX_WORD

if TYPE_CHECKING:
    from flujo_client.config.models import AdmissionSettings
    from flujo_client.plan.plan import Plan

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


def gates_of(
    settings: AdmissionSettings, options: AdmissionOptions, *, plan: Plan, tenant: str, value: Any
) -> tuple[Gate, ...]:
    """Return the gates of a run; none for a run without limits. The plan's limits apply beside those of the caller.

    Raises:
        ConfigurationError: an option is invalid, or a template does not fit the input; names it.
    """
    pipeline, of_plan = plan.name, [RunLimit(**each) for each in plan.run_limits or ()]
    options = replace(options, run_limits=[*of_plan, *options.run_limits])
    share, own = _fitting(settings.tenant, tenant), _fitting(settings.pipeline, pipeline)
    weight, of_pipeline = (1.0 if share is None else share.weight), (1.0 if own is None else own.weight)
    gates = [*_asked(options, pipeline=pipeline, tenant=tenant, value=value)]
    if own is not None and own.max_running is not None:
        gates.append(Gate(f"pipeline {pipeline}", own.max_running, is_window=True))
    gates = [replace(gate, flow=tenant, weight=weight) for gate in gates]
    most = settings.tenant_window and ceil(settings.tenant_window * weight)
    most = share.max_running if share is not None and share.max_running is not None else most
    if most is not None:
        name = f"tenant '{tenant}'" if tenant else "runs without a tenant"
        gates.append(Gate(name, most, flow=pipeline, weight=of_pipeline, is_window=True))
    return tuple(gates)


def _asked(options: AdmissionOptions, *, pipeline: str, tenant: str, value: Any) -> list[Gate]:
    names = {"input": value, "tenant": tenant}
    of_tenant = f" of tenant '{tenant}'" if tenant else ""
    here, gates = f" of pipeline {pipeline}{of_tenant}", []
    if options.debounce_s is not None:
        check_seconds("debounce_s", options.debounce_s)
        name = _rendered("debounce_key", options.debounce_key, names) if options.debounce_key else ""
        gates.append(Gate(f"debounce '{name}'{here}", None, policy="cancel_oldest", wait_s=options.debounce_s))
    elif options.debounce_key:
        raise ConfigurationError("`debounce_key` needs `debounce_s`: for how long the run waits for a later input")
    check_choice("singleton", options.singleton, get_args(Singleton))
    if options.singleton_key is not None:
        check_key("singleton_key", options.singleton_key)
        policies: dict[str, Policy] = {"return": "return", "queue": "queue", "replace": "cancel_oldest"}
        name = _rendered("singleton_key", options.singleton_key, names)
        gates.append(Gate(f"singleton '{name}'{here}", 1, policy=policies[options.singleton]))
    scopes = {"global": "", "pipeline": f" of pipeline {pipeline}", "tenant": of_tenant}
    for index, limit in enumerate(options.run_limits):
        if not isinstance(limit, RunLimit):
            raise ConfigurationError(f"run_limits[{index}] must be a RunLimit, got a {type(limit).__name__}")
        name = _rendered(f"run_limits[{index}].key", limit.key, names)
        gates.append(Gate(f"limit '{name}'{scopes[limit.scope]}", limit.most, policy=limit.on_full))
    if (throttle := options.throttle) is not None:
        if not isinstance(throttle, Throttle):
            raise ConfigurationError(f"`throttle` must be a Throttle, got a {type(throttle).__name__}")
        name = _rendered("throttle.key", throttle.key, names) if throttle.key else ""
        gates.append(
            Gate(f"throttle '{name}'{here}", throttle.most, period_s=throttle.period_s, policy=throttle.on_full)
        )
    twice = {gate.name for gate in gates if [each.name for each in gates].count(gate.name) > 1}
    if twice:
        raise ConfigurationError(f"{min(twice)} is given twice; give each key one limit")
    return gates


def _fitting(table: Mapping[str, T], name: str) -> T | None:
    """Find what counts for a name: its own entry, else the first pattern that fits."""
    return table.get(name) or next((found for pattern, found in table.items() if fnmatchcase(name, pattern)), None)


def run_key(text: str) -> Template:
    """Read the template of a key; raises BlueprintTextError."""
    return compile_template(text, undefined="strict", allowed=ROOTS)


def _rendered(where: str, text: str, names: Mapping[str, Any]) -> str:
    try:
        key = run_key(text).render(names)
    except (BlueprintTextError, TemplateResolutionError) as error:
        problem = f"the template {text[:80]!r} of `{where}` does not fit this run: {error.message}"
        raise ConfigurationError(problem, suggestion=error.suggestion, cause=error) from error
    if not 0 < len(key) <= MAX_WORD or not key.isprintable():
        raise ConfigurationError(f"`{where}` must give 1 to {MAX_WORD} printable characters, got {key[:80]!r}")
    return key
