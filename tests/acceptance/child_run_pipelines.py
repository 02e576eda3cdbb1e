"""The pipelines with child runs that the acceptance tests' workers import; their steps are those of `acceptance_pipelines`."""

from acceptance_pipelines import ONCE, Visits, visit, wait_at_gate

from flujo_client import Pipeline, Step
from flujo_client.pipeline.pipeline import Body


def of(*steps: Step, name: str | None = None) -> Pipeline:
    return Pipeline(list(steps), name=name, context_model=Visits)


def importing(body: Body) -> Pipeline:
    """A step before, the child run, a step after."""
    return of(Step("first", visit, config=ONCE), own(body), Step("third", visit, config=ONCE))


def own(body: Body, name: str = "legal") -> Step:
    pipeline = body if isinstance(body, Pipeline) else of(body)
    return pipeline.as_step(name, own_run=True)


second = of(Step("second", visit, config=ONCE), Step("again", visit, config=ONCE), name="reading")
reading = importing(second)
gated = importing(of(Step("gated", wait_at_gate, config=ONCE), name="waiting"))
nested = importing(own(Step("gated", wait_at_gate, config=ONCE), name="inner"))
wide = of(Step.parallel("fan", {letter: own(second, name=letter) for letter in "abcd"}, max_concurrency=2))
rounds = of(Step.loop_until("rounds", of(own(second)), lambda output, context: len(output) >= 6, max_loops=9))
