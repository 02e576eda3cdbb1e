"""`built`: blueprints in both ways that they come to a worker."""

import pytest

from flujo_client import Pipeline
from flujo_client.pipeline.compile import compile_plan


@pytest.fixture(params=["as written", "written again"])
def built(request):
    """Blueprints as they are read, and as they are read from what `to_yaml` makes of them."""

    def built(text):
        pipeline = Pipeline.from_yaml_text(text)
        if request.param == "as written":
            return pipeline
        again = Pipeline.from_yaml_text(pipeline.to_yaml())
        assert compile_plan(again).nodes == compile_plan(pipeline).nodes
        return again

    return built
