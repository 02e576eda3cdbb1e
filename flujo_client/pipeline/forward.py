"""Classes that the methods of `Step` and `Pipeline` make, and that are themselves subclasses of these.

`Step.loop_until` makes a `LoopStep`, which is a `Step`. So that modules do not import each other, each is imported when it is first used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from flujo_client.pipeline.cache import CacheStep
    from flujo_client.pipeline.conditional import ConditionalStep
    from flujo_client.pipeline.human import HumanInTheLoopStep
    from flujo_client.pipeline.loop import LoopStep
    from flujo_client.pipeline.map import MapStep
    from flujo_client.pipeline.nested import ImportStep
    from flujo_client.pipeline.parallel import ParallelStep
    from flujo_client.pipeline.pipeline import Pipeline
    from flujo_client.pipeline.router import DynamicParallelRouterStep
    from flujo_client.pipeline.step import Step
    from flujo_client.recipes.agentic_loop import AgenticLoopStep
    from flujo_client.recipes.tree_search import TreeSearchStep


_HOME: Final = {
    "AgenticLoopStep": "recipes.agentic_loop",
    "CacheStep": "pipeline.cache",
    "ConditionalStep": "pipeline.conditional",
    "DynamicParallelRouterStep": "pipeline.router",
    "HumanInTheLoopStep": "pipeline.human",
    "ImportStep": "pipeline.nested",
    "LoopStep": "pipeline.loop",
    "MapStep": "pipeline.map",
    "ParallelStep": "pipeline.parallel",
    "Pipeline": "pipeline.pipeline",
    "TreeSearchStep": "recipes.tree_search",
    "gather": "pipeline.parallel",
    "granular": "pipeline.granular",
    "refine_until": "recipes.refine",
}


class Forward:
    """The classes and functions by name, each imported when it is first used."""

    AgenticLoopStep: type[AgenticLoopStep]
    CacheStep: type[CacheStep]
    ConditionalStep: Callable[..., ConditionalStep]
    DynamicParallelRouterStep: type[DynamicParallelRouterStep]
    HumanInTheLoopStep: type[HumanInTheLoopStep]
    ImportStep: type[ImportStep]
    LoopStep: Callable[..., LoopStep]
    MapStep: type[MapStep]
    ParallelStep: Callable[..., ParallelStep]
    Pipeline: type[Pipeline]
    TreeSearchStep: type[TreeSearchStep]
    gather: Callable[[str, Sequence[str], dict[str, Any]], Step]
    granular: Callable[[str, Any, str, dict[str, Any], dict[str, Any]], Step]
    refine_until: Callable[..., Any]

    def __getattr__(self, name: str) -> Any:
        setattr(self, name, getattr(import_module(f"flujo_client.{_HOME[name]}"), name))
        return self.__dict__[name]


forward = Forward()
