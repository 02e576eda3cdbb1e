"""Find the `deps` of an agent on pydantic-ai: the attempt's resources or its context, whichever is of the agent's `deps_type`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flujo_client.errors import NonRetryableError
from flujo_client.pipeline.resources import deps_type_of, fits
from flujo_client.plan.identity import agent_name


def deps_for(agent: Any, at_hand: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword argument for an agent's deps; empty for an agent without deps.

    Args:
        agent: an agent of the library, or one of ours.
        at_hand: the attempt's `resources` and `context` among others.

    Raises:
        NonRetryableError: neither is of the agent's `deps_type`.
    """
    wanted = deps_type_of(agent)
    if wanted is None:
        return {}
    given = [at_hand[name] for name in ("resources", "context") if at_hand.get(name) is not None]
    for each in given:
        if fits(each, wanted):
            return {"deps": each}
    found = " and ".join(type(each).__name__ for each in given) or "nothing"
    raise NonRetryableError(
        f"agent '{agent_name(agent)}' needs deps of type {getattr(wanted, '__name__', wanted)}, but this attempt has {found}",
        suggestion="make them with the pipeline's `resources`, or use that type as its context_model",
        code="NO_DEPS",
    )
