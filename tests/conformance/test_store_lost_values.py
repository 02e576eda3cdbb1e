"""Values that are gone between their storing and the merge that refers to them, as after a failover to a lagging replica: nothing is merged."""

from dataclasses import replace

import pytest
from test_store_lost_claims import Attempt
from trees import fanning_out

from flujo_client.contract.outcome import Usage
from flujo_worker.domain.values import AttemptReport
from tests.support.builders import decided, packed, succeeded

KEPT, LOST = packed("kept " * 100), packed("lost " * 100)


@pytest.fixture(params=["plain", "tree", "limited"])
def attempt(request, world):
    return Attempt(world, request.param)


@pytest.fixture
def decision(attempt):
    """What one attempt comes to, for which two values were stored."""
    claim, outcome, first = attempt.claim("w1"), succeeded(usage=Usage(input_tokens=7, requests=1)), attempt.new.first
    made = fanning_out(first, 2) if attempt.kind == "tree" else decided(attempt.new, outcome)
    made = replace(made, notice=AttemptReport(first, claim.fence, outcome, claim.claim_id))
    return replace(made, stored=(KEPT.digest, LOST.digest))


def test_nothing_is_merged_until_all_are_there(world, attempt, decision):
    """What it has spent is recorded with the merge, and once."""
    run = attempt.new.first.ticket.run
    world.stores.blobs.store([KEPT])
    before = world.picture(run)
    assert world.commit(decision) == "unstored"
    assert world.picture(run) == before
    world.stores.blobs.store([KEPT, LOST])
    assert [world.commit(decision), world.commit(decision)] == ["merged", "repeated"]
    assert attempt.tokens() == 7


def test_who_has_lost_the_claim_as_well_stores_them_for_nothing(world, attempt, decision):
    other = replace(decision, notice=replace(decision.notice, fence=7))
    assert world.commit(other) == "unstored"
    world.stores.blobs.store([KEPT, LOST])
    assert world.commit(other) == "stale"
