"""What a retry may begin at, and what of the old run the new one keeps. Pure."""

import pytest

from flujo_client import PipelineContext, Settings, UsageLimits
from flujo_client.api.retry import order_of
from flujo_client.errors import ConfigurationError, RetryError
from flujo_client.pipeline.fork import Beginning, RetryableRun, new_fork, place_of
from flujo_client.serial import Resolver, decode
from tests.support.builders import enqueued, packed, pipeline_of

NOW = 1_700_000_000.0


def standing(status="failed", cursor=1, **rest):
    new = enqueued(pipeline_of("a", "b", "c"), run_id="run_1", tenant="acme", queue="slow", priority=3)
    return RetryableRun(new.first.ticket, new.plan, status, cursor, **{"metadata": {"order": 17}, **rest})


@pytest.mark.parametrize(("step", "place"), [(None, 1), ("a", 0), ("b", 1)])
def test_it_begins_where_it_is_told_or_where_the_run_failed(step, place):
    assert place_of(standing(), step) == place


@pytest.mark.parametrize("status", ["succeeded", "cancelled", "expired"])
def test_every_run_that_has_ended_can_be_retried(status):
    assert place_of(standing(status, cursor=3), "c") == 2


@pytest.mark.parametrize(
    ("given", "step", "code", "said"),
    [
        (standing("running"), "a", "RUN_IS_LIVE", "run run_1 is still running\n  → cancel it first"),
        (standing("queued"), None, "RUN_IS_LIVE", "run run_1 is still queued\n  → cancel it first"),
        (standing("parked"), "a", "RUN_IS_LIVE", "run run_1 is still parked\n  → cancel it first"),
        (
            standing(is_child=True),
            "a",
            "CHILD_RUN",
            "run run_1 is a step of another run\n  → retry that run, from the step that began this one",
        ),
        (
            standing(),
            "d",
            "UNKNOWN_STEP",
            "run run_1 has no top-level step 'd'\n  → retry from one of these: 'a', 'b'",
        ),
        (standing(), "c", "STEP_NOT_BEGUN", "run run_1 never reached step 'c'\n  → retry from one of these: 'a', 'b'"),
        (
            standing("succeeded", cursor=3),
            None,
            "NO_STEP_FAILED",
            "run run_1 is succeeded, and none of its steps failed\n  → retry from one of these: 'a', 'b', 'c'",
        ),
        (
            standing("cancelled"),
            None,
            "NO_STEP_FAILED",
            "run run_1 is cancelled, and none of its steps failed\n  → retry from one of these: 'a', 'b'",
        ),
        (
            standing("failed", cursor=3),
            None,
            "NO_STEP_FAILED",
            "run run_1 is failed, and none of its steps failed\n  → retry from one of these: 'a', 'b', 'c'",
        ),
    ],
)
def test_what_cannot_be_retried_is_refused_with_the_way_out(given, step, code, said):
    with pytest.raises(RetryError) as refused:
        place_of(given, step)
    assert (refused.value.error_code, str(refused.value)) == (code, said)


def fork(given, context=None, **options):
    order = order_of(Settings(), given, now=NOW, **options)
    beginning = Beginning(packed("B"), context)
    return new_fork(given, 1, beginning, order, inline=65_536, control_queue="flujo.control")


def test_what_is_not_asked_for_is_as_it_was():
    new = fork(standing(patience_s=60.0))
    ticket = new.first.ticket
    assert (ticket.tenant, ticket.queue, ticket.priority, ticket.deadline) == ("acme", "slow", 3, NOW + 60.0)
    assert (new.metadata, new.idempotency_key, new.taken) == ({"order": 17}, None, ("a",))
    assert ticket.fingerprint == standing().ticket.fingerprint


def test_what_is_asked_for_counts():
    new = fork(standing(), queue="fast", priority=0, deadline_s=5.0, metadata={}, idempotency_key="k")
    ticket = new.first.ticket
    assert (ticket.queue, ticket.priority, ticket.deadline) == ("fast", 0, NOW + 5.0)
    assert (new.metadata, new.idempotency_key) == ({}, "k")


def test_an_option_that_cannot_be_is_refused():
    with pytest.raises(ConfigurationError, match="priority 12"):
        fork(standing(), priority=12)


def limited(limits=None):
    named = {"run": "run_1", "limits": limits and limits.model_dump(), "tenant": "acme", "tenant_limits": None}
    new = enqueued(pipeline_of("a", "b", "c"), run_id="run_1", limits=named)
    return RetryableRun(new.first.ticket, new.plan, "failed", 1)


@pytest.mark.parametrize(("asked", "tokens"), [({}, 10), ({"limits": UsageLimits(total_tokens_limit=99)}, 99)])
def test_limits_are_the_old_runs_or_those_that_are_asked_for_and_its_budget_is_a_new_one(asked, tokens):
    new = fork(limited(UsageLimits(total_tokens_limit=10)), **asked)
    limits = new.first.ticket.limits
    assert (limits["run"], limits["limits"]["total_tokens_limit"]) == (new.first.ticket.run, tokens)


def test_a_context_that_knows_its_run_knows_the_new_one():
    old = PipelineContext(run_id="run_1", initial_prompt="hello", scratchpad={"n": 1})
    new = fork(standing(), context=packed(old))
    found = decode(new.first.context.tree(), resolve=Resolver(("*",)))
    assert found == old.model_copy(update={"run_id": new.first.ticket.run})


def test_any_other_context_stays_byte_for_byte():
    given = packed({"run_id": "run_1"})
    assert bytes(fork(standing(), context=given).first.context) == bytes(given)
