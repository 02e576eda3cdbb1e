"""The names of concurrency limits: templates over a step's input, the context and the run's tenant.

In: a limit, and the values of an attempt. Out: the name under which the attempt is counted, or what is wrong with the limit.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from flujo_client.contract.limit import LONGEST_NAME, Limit
from flujo_client.errors import FlujoError, NonRetryableError
from flujo_client.expressions.templates import Template, compile_template
from flujo_client.pipeline.compiled_text import TEMPLATE_NAMES, names_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flujo_client.pipeline.context_info import ContextInfo

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
    """Return the name under which an attempt is counted: the limit's name with its scope.

    Args:
        limit: the step's.
        name: its name, filled in.
        pipeline: the name of the run's pipeline.
        run: the run's id.
        provider: the provider of the step's model; None if unknown.

    Raises:
        NonRetryableError: the scope is `provider`, and the provider is unknown.
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
