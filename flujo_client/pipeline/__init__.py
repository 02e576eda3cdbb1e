"""Steps and pipelines, and the check before sending."""

from flujo_client.pipeline.cache import CacheStep
from flujo_client.pipeline.conditional import ConditionalStep
from flujo_client.pipeline.forward import forward
from flujo_client.pipeline.human import HumanInTheLoopStep
from flujo_client.pipeline.loop import LoopStep
from flujo_client.pipeline.map import MapStep
from flujo_client.pipeline.nested import ImportStep
from flujo_client.pipeline.parallel import ParallelStep, gather
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.router import DynamicParallelRouterStep

forward.cached = CacheStep
forward.conditional = ConditionalStep
forward.gather = gather
forward.human = HumanInTheLoopStep
forward.loop = LoopStep
forward.map = MapStep
forward.nested = ImportStep
forward.parallel = ParallelStep
forward.pipeline = Pipeline
forward.router = DynamicParallelRouterStep
