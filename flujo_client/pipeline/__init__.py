"""Steps and pipelines, the check before sending, and the plan that is sent."""

from flujo_client.pipeline.agentic_loop import AgenticLoopStep
from flujo_client.pipeline.cache import CacheStep
from flujo_client.pipeline.conditional import ConditionalStep
from flujo_client.pipeline.forward import forward
from flujo_client.pipeline.gather import gather
from flujo_client.pipeline.human import HumanInTheLoopStep
from flujo_client.pipeline.loop import LoopStep
from flujo_client.pipeline.map import MapStep
from flujo_client.pipeline.nested import ImportStep
from flujo_client.pipeline.parallel import ParallelStep
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.refine import refine_until
from flujo_client.pipeline.router import DynamicParallelRouterStep
from flujo_client.pipeline.tree_search import TreeSearchStep

forward.agentic_loop = AgenticLoopStep
forward.cached = CacheStep
forward.conditional = ConditionalStep
forward.gather = gather
forward.human = HumanInTheLoopStep
forward.loop = LoopStep
forward.map = MapStep
forward.nested = ImportStep
forward.parallel = ParallelStep
forward.pipeline = Pipeline
forward.refine_until = refine_until
forward.router = DynamicParallelRouterStep
forward.tree_search = TreeSearchStep
