"""Work in an aborted fan-out closes itself, including work that had not begun."""

from flujo_client.errors import NonRetryableError
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.step import Step


def spoil(data):
    raise NonRetryableError("no good")


class Meanwhile:
    """Lets the rest of the world continue while its first call is being made."""

    def __init__(self):
        self.engine, self.calls = None, 0

    def __call__(self, data):
        self.calls += 1
        if self.calls == 1:
            for message in [self.engine.bus.popleft() for _ in range(len(self.engine.bus))]:
                self.engine.deliver(message)
        return data


def test_items_that_had_not_begun_are_closed_with_their_branch(engine):
    """SYS-13: the branch was at its first item when its sibling failed; none of the others is left open."""
    meanwhile = Meanwhile()
    mapped = Step.map_over("each", Step("item", meanwhile), iterable_input="scratchpad.items")
    pipeline = Pipeline([Step.parallel("fan", {"long": Pipeline([mapped]), "short": Step("bad", spoil)})])
    meanwhile.engine = engine
    run = engine.enqueue(pipeline, "in", context={"scratchpad": {"items": [1, 2, 3, 4]}})
    engine.deliver(engine.bus.popleft())  # the start of the run
    engine.deliver(engine.bus.popleft())  # the start of the long branch
    engine.bus.rotate(1)
    engine.drain()
    assert engine.result(run).run_status == "failed"
    assert meanwhile.calls == 1
    assert {each.address: each.status for each in engine.stores.reads.read_scopes(run) if each.status == "open"} == {}
    cancelled = [each.address for each in engine.stores.reads.read_scopes(run) if each.status == "cancelled"]
    assert set(cancelled) == {"fan/long", "fan/long/each", *(f"fan/long/each#{number}" for number in range(1, 5))}
