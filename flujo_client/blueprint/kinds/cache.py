"""Cached steps in blueprints."""

from typing import Final

from flujo_client.blueprint.kind import LONE_STEP, BlueprintKind
from flujo_client.blueprint.shapes import Key, Number
from flujo_client.blueprint.value_types import Reference
from flujo_client.pipeline.cache import BACKEND, CacheStep

KIND: Final = BlueprintKind(
    step=CacheStep,
    keys={
        "wrapped_step": Key(LONE_STEP, "The step whose result is cached.", required=True),
        "ttl_s": Key(Number(least=0), "How long it is cached, in seconds; 0 is forever; an hour by default."),
        "single_flight_s": Key(
            Number(least=0),
            "How long equal calls wait for the one that runs the step, in seconds; 0: they do not; 60 by default.",
        ),
        "cache_backend": Key(Reference(BACKEND), "Where it is cached; the workers' Redis by default."),
    },
    one_of=(),
)
