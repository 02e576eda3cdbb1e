"""What a commit and its messages carry: references in the place of what is large, or small and carried often."""

from dataclasses import replace
from random import Random

from flujo_worker.coordinator.offload import WORTH_SHARING, offload_large_values
from flujo_worker.domain.values import ChildRun
from tests.support.builders import decided, enqueued, packed, pipeline_of, succeeded

INLINE = 4_000


def some(size):
    """A value that takes about so many bytes, however it is packed."""
    return packed(Random(size).randbytes(size).hex())


def decision(**changes):
    return replace(decided(enqueued(pipeline_of("a", "b")), succeeded()), **changes)


def test_a_decision_with_nothing_large_stays_itself():
    given = decision()
    assert offload_large_values(given, INLINE) == (given, [])


def test_what_is_large_is_kept_once_and_pointed_at_everywhere():
    large = some(2 * INLINE)
    given = decision()
    given = replace(given, moves=(replace(given.move, context=large),), next=(replace(given.next[0], context=large),))
    light, heavy = offload_large_values(given, INLINE)
    assert heavy == [large]
    assert light.move.context.is_reference
    assert light.next[0].context == light.move.context == large.reference()


def test_what_many_messages_carry_is_pointed_at_too():
    """However small each is, so that a fan-out's messages do not grow with the context."""
    shared, given = some(WORTH_SHARING + 100), decision()
    one, many = (replace(given, next=(replace(given.next[0], context=shared),) * times) for times in (1, 9))
    assert offload_large_values(one, INLINE)[1] == []
    assert offload_large_values(many, INLINE)[1] == [shared]


def test_a_child_runs_values_are_as_light_as_any_others():
    context, value = some(2 * INLINE), some(3 * INLINE)
    first = replace(decision().next[0], context=context, input=value)
    light, heavy = offload_large_values(
        decision(child_run=ChildRun(enqueued(run_id="r.1").first.ticket, "legal", "legal", first)), INLINE
    )
    assert heavy == [value, context]
    assert (light.child_run.first.context, light.child_run.first.input) == (context.reference(), value.reference())


def test_what_is_a_reference_already_is_not_kept_again():
    given = decision()
    pointing = some(2 * INLINE).reference()
    assert (
        offload_large_values(replace(given, moves=(replace(given.move, context=pointing),)), 1)[1].count(pointing) == 0
    )
