"""A conversation with a person, over real workers: every turn is there once, in its order, whichever process dies in between (requirements §2.6)."""

import pytest

from tests.support.fleet import BRISK, PATIENCE_S, wait_until

# However often a busy machine lets a short lease lapse, no attempt is given up for it.
pytestmark = [pytest.mark.acceptance, pytest.mark.site(worker={**BRISK, "max_lost": 1000})]

WORDS = ["hello", "go on", "bye"]


@pytest.fixture(scope="module")
def survivor(site):
    """The worker that carries on."""
    return site.workers()


def talk(site):
    """A whole conversation: its turns, and how often the loop went round."""
    run = site.client.enqueue("conversation_pipelines:chat", "hi")
    for word in WORDS:
        wait_until(lambda: run.status() == "paused", what=site.log)
        run.resume(word, actor="ana")
    result = run.result(timeout=PATIENCE_S)
    assert (result.run_status, result.output) == ("succeeded", "bye"), site.log()
    turns = [(turn.role, turn.content) for turn in result.final_pipeline_context.conversation_history]
    return turns, result.step_history[-1].metadata_["iterations"]


def expected():
    """What was said by turns: each answer of the model tells how many turns it was told of."""
    turns, before = [], "hi"
    for place, word in enumerate(WORDS):
        turns += [("assistant", f"{2 * place} turns, then {before}"), ("user", word)]
        before = word
    return turns, len(WORDS)


@pytest.mark.parametrize("name", ["after_claim", "before_commit"])
def test_a_worker_that_dies_takes_no_turn_with_it_and_leaves_none_twice(site, survivor, name):
    """M-013, U-01: kill -9 at this place, in whichever attempt it comes to; the model was told of every turn before, once."""
    marker = site.folder / f"chat_{name}"
    armed = site.workers(failpoints=f"{name}:kill:{marker}")
    while not marker.exists():
        assert talk(site) == expected()
    wait_until(lambda: not armed.pids, what="the armed process has died")
    armed.kill()
    assert survivor.pids
