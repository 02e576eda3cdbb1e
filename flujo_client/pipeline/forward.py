"""Classes that steps and pipelines make although these classes are made of steps and pipelines.

`Step.loop_until` makes a `LoopStep`, which is a `Step`. To import each other is what this avoids: the package's `__init__` binds the
names once all modules are imported. Recipes, one floor above, are imported when they are first used.
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


_RECIPES: Final = {
    "AgenticLoopStep": "agentic_loop",
    "TreeSearchStep": "tree_search",
    "refine_until": "refine",
}


class Forward:
    """The classes by name."""

    AgenticLoopStep: type[AgenticLoopStep]
    cached: type[CacheStep]
    conditional: Callable[..., ConditionalStep]
    gather: Callable[[str, Sequence[str], dict[str, Any]], Step]
    human: type[HumanInTheLoopStep]
    loop: Callable[..., LoopStep]
    map: type[MapStep]
    nested: type[ImportStep]
    parallel: Callable[..., ParallelStep]
    pipeline: type[Pipeline]
    refine_until: Callable[..., LoopStep]
    router: type[DynamicParallelRouterStep]
    TreeSearchStep: type[TreeSearchStep]

    def __getattr__(self, name: str) -> Any:
        module = import_module(f"flujo_client.recipes.{_RECIPES[name]}")
        setattr(self, name, getattr(module, name))
        return self.__dict__[name]


forward = Forward()
