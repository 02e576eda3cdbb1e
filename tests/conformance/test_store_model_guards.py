"""The fleet's settings of breakers and rate limits: files give the first values, operators change them, and who waits asks again (C-48, ADR 36)."""

import pytest

from flujo_client.contract.limits import WAKE_S, GuardRow, waits_for
from flujo_worker.ports import ClaimId
from tests.support.builders import enqueued, pipeline_of

MODEL = "openai:gpt_5"
EVERY, LIMIT = GuardRow("breaker", "*", {"failures": 3}), GuardRow("rate", "openai:*", {"requests_per_minute": 60})


def rows(world):
    return [(row.guard, row.model, row.settings) for row in world.stores.limits.guard_rows()]


def test_a_file_gives_the_first_values_and_the_latest_file_counts(world):
    world.stores.limits.write_file_settings([EVERY, LIMIT])
    assert world.stores.limits.guard_rows() == [EVERY, LIMIT]
    world.stores.limits.write_file_settings([GuardRow("breaker", "*", {})])
    assert world.stores.limits.guard_rows() == [GuardRow("breaker", "*", {})]


def test_what_an_operator_sets_stays_above_files(world):
    world.stores.limits.write_file_settings([EVERY, LIMIT])
    world.edit_guard("rate", "openai:*", {"requests_per_minute": 90})
    world.edit_guard("rate", "openai:*", {"tokens_per_minute": 5})
    world.edit_guard("breaker", MODEL, {"enabled": False})
    world.stores.limits.write_file_settings([GuardRow("breaker", "*", {"rate": 0.4})])
    assert rows(world) == [
        ("breaker", "*", {"rate": 0.4}),
        ("breaker", MODEL, {"enabled": False}),
        ("rate", "openai:*", {"requests_per_minute": 90, "tokens_per_minute": 5}),
    ]


def test_an_operator_can_go_back_to_the_file(world):
    world.stores.limits.write_file_settings([EVERY])
    world.edit_guard("breaker", "*", {"failures": 9, "rate": 0.9})
    world.edit_guard("breaker", "*", resets=True)
    world.edit_guard("rate", MODEL, {"requests_per_minute": 1})
    world.edit_guard("rate", MODEL, resets=True)
    assert rows(world) == [("breaker", "*", {"failures": 3}), ("rate", MODEL, None)]
    world.stores.limits.write_file_settings([EVERY])
    assert rows(world) == [("breaker", "*", {"failures": 3})]


def test_a_request_to_close_a_breaker_is_kept_for_all_workers(world):
    began = world.now()
    world.edit_guard("breaker", MODEL, clears=True)
    world.stores.limits.write_file_settings([EVERY])
    [_, row] = world.stores.limits.guard_rows()
    assert (row.model, row.settings) == (MODEL, None)
    assert began - 1 <= row.cleared_at <= world.now()


def test_who_changed_what_is_an_event(world):
    world.edit_guard("breaker", MODEL, {"enabled": False}, actor="mona")
    [event] = world.system_events()
    assert (event.name, event.data["model"], event.data["edits"], event.data["actor"]) == (
        "guard.edited",
        MODEL,
        {"enabled": False},
        "mona",
    )


@pytest.mark.parametrize(
    ("guard", "model", "wakes"),
    [
        ("breaker", MODEL, True),
        ("breaker", "openai:*", True),
        ("breaker", "openai:gpt?5", True),
        ("breaker", "*", True),
        ("rate", MODEL, False),
        ("breaker", "openai:gpt", False),
        ("breaker", "anthropic:*", False),
    ],
)
def test_attempts_that_wait_for_the_model_ask_again(world, guard, model, wakes):
    new = world.record(enqueued(pipeline_of("a"), run_id="run_waits"))
    world.stores.attempts.defer(ClaimId(new.first.key, world.claim(new)), 600.0, waits_for=waits_for("breaker", MODEL))
    assert world.edit_guard(guard, model, {}) == int(wakes)
    assert world.due() == []
    world.pass_time(WAKE_S)
    assert [due.envelope.key for due in world.due()] == [new.first.key] * wakes


def test_attempts_that_wait_for_something_else_do_not(world):
    """And who soon asks anyway is left alone."""
    retried, soon = (world.record(enqueued(pipeline_of("a"), run_id=f"run_{name}")) for name in ("retried", "soon"))
    world.stores.attempts.defer(ClaimId(retried.first.key, world.claim(retried)), 600.0)
    world.stores.attempts.defer(ClaimId(soon.first.key, world.claim(soon)), 1.0, waits_for=waits_for("breaker", MODEL))
    assert world.edit_guard("breaker", "*", {}) == 0
