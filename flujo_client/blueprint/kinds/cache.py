"""Cached steps in blueprints."""

from __future__ import annotations

from typing import Final

from flujo_client.blueprint.kind import LONE_STEP, BlueprintKind, present
from flujo_client.blueprint.shapes import Key, Number
from flujo_client.blueprint.value_types import Reference
from flujo_client.pipeline.cache import BACKEND, CacheStep

_OPTIONS: Final = ("ttl_s", "single_flight_s")

KIND: Final = BlueprintKind(
    step=CacheStep,
    keys={
        "wrapped_step": Key(LONE_STEP, "The step whose result is cached.", required=True),
        "ttl_s": Key(Number(least=0), "How long it is cached, in seconds; 0 for ever; an hour by default."),
        "single_flight_s": Key(
            Number(least=0),
            "How long equal calls wait for the one that runs the step, in seconds; 0: they do not; 60 by default.",
        ),
        "cache_backend": Key(Reference(BACKEND), "Where it is cached; the workers' Redis by default."),
    },
    one_of=(),
    build=lambda build, data: CacheStep(
        wrapped_step=build.step(data["wrapped_step"]),
        **present(data, *_OPTIONS, "cache_backend"),
        **build.contained(data),
    ),
    write=lambda writing, step: {
        "wrapped_step": writing.step(step.wrapped_step),
        **writing.options(step, *_OPTIONS, cache_backend=BACKEND),
    },
)
