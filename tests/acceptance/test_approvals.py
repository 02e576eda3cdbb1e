"""People in the loop over real workers: a question occupies no worker, and an answer takes effect once, whatever dies meanwhile."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from flujo_client.api.operations import peek_at
from flujo_client.errors import ResumeError
from tests.support.fleet import BRISK, PATIENCE_S, Site, wait_until

pytestmark = pytest.mark.acceptance

YES = {"approved": True, "why": "fine"}


def paused(site, name, value=None):
    """A run of `human_pipelines` that has come to its question."""
    run = site.client.enqueue(f"human_pipelines:{name}", value or [])
    wait_until(lambda: run.status() == "paused", what=site.log)
    return run


def age(site, run, seconds):
    """Make a run older: its question was asked so long ago."""
    older = "make_interval(secs => %(s)s)"
    with site.connection() as connection:
        for table, columns, by in (
            ("attempts", ("available_at", "created_at"), "run_id"),
            ("runs", ("created_at", "started_at"), "id"),
        ):
            moves = ", ".join(f"{column} = {column} - {older}" for column in columns)
            connection.execute(f"UPDATE flujo_{table} SET {moves} WHERE {by} = %(run)s", {"s": seconds, "run": run.id})


def test_thirty_days_without_workers_and_with_redis_emptied_twice(site):
    """M-449, design §5: rows remember; nothing else has to."""
    site.standing()
    run = paused(site, "approval")
    site.dismiss()
    site.redis.flushdb()
    age(site, run, 30 * 86_400)
    [asked] = run.approvals()
    assert (asked.state, run.status()) == ("open", "paused")
    run.resume(YES, actor="ana")
    site.redis.flushdb()  # the message that asks for a sweep is lost as well
    site.standing()
    result = run.result(timeout=PATIENCE_S)
    assert (result.run_status, result.output["approved"]) == ("succeeded", True), site.log()
    assert [len(site.executions(run.id, step)) for step in ("start", "finish")] == [1, 1]


def test_functions_between_steps_ask_and_continue_with_the_answer(site):
    """M-042: on rows alone, whichever process dies meanwhile; each step runs once."""
    site.standing()
    run = paused(site, "functions_that_ask")
    site.dismiss()
    [asked] = run.approvals()
    assert (asked.step, asked.message) == ("way", "left or right?")
    run.resume("left")
    site.standing()
    wait_until(
        lambda: [each.message for each in run.approvals() if each.state == "open"] == ["whose words?"], what=site.log
    )
    assert run.status() == "paused"
    run.resume("both")
    result = run.result(timeout=PATIENCE_S)
    assert (result.run_status, result.final_pipeline_context.scratchpad["merged"]) == ("succeeded", "both"), site.log()
    assert sorted(each.step for each in site.executions(run.id)) == ["a", "b", "end", "go", "start"]


def test_a_run_waits_for_a_person_and_continues(site):
    """M-449, M-451, U-37: the status is seen in run and context together; no message and no worker waits."""
    site.standing()
    run = paused(site, "approval")
    record, [asked] = run.record(), run.approvals()
    assert (record.status, asked.step, asked.message) == ("paused", "ask", "May it go out?")
    assert [each.run_id for each in site.client.approvals(pipeline="approval")] == [run.id]
    assert [each.id for each in site.client.list_runs(status="paused")] == [run.id]
    assert site.redis.llen("flujo.attempts") == 0
    run.resume(YES, actor="ana", note="checked")
    result = run.result(timeout=PATIENCE_S)
    assert (result.run_status, result.output) == ("succeeded", {"approved": True, "why": "fine", "asked": 1}), (
        site.log()
    )
    assert result.final_pipeline_context.hitl_history[0].actor == "ana"
    assert result.final_pipeline_context.status.value == "completed"


def test_of_two_people_at_once_one_acts(site):
    """M-452: the other is told who it was; the step after the question runs once."""
    site.standing(2)
    run = paused(site, "approval")

    def say(actor):
        try:
            return run.resume(YES, actor=actor).step
        except ResumeError as refused:
            return refused.error_code, str(refused)

    with ThreadPoolExecutor(2) as pool:
        said = dict(zip(("ana", "bob"), pool.map(say, ("ana", "bob")), strict=True))
    [first] = [actor for actor, told in said.items() if told == "ask"]
    [refused] = [told for told in said.values() if told != "ask"]
    assert refused[0] == "ALREADY_ANSWERED"
    assert f"by {first} at " in refused[1]
    assert run.result(timeout=PATIENCE_S).final_pipeline_context.hitl_history[0].actor == first
    assert len(site.executions(run.id, "finish")) == 1


@pytest.mark.parametrize("point", ["after_claim", "before_commit", "answer_lost", "before_publish"])
def test_a_worker_that_dies_with_the_answer_in_hand(site, point, tmp_path):
    """U-43, M-013: the answer is acted upon again and merged once."""
    site.standing()
    run = paused(site, "approval")
    site.dismiss()
    run.resume(YES, actor="ana")
    doomed = site.unready_workers(1, failpoints=f"{point}:kill:{tmp_path / point}")
    wait_until(lambda: not doomed.pids, what=site.log)
    site.standing()
    result = run.result(timeout=PATIENCE_S)
    assert (result.run_status, len(result.final_pipeline_context.hitl_history)) == ("succeeded", 1), site.log()
    assert [event["data"]["step"] for event in site.events(run.id, "flujo.resumed")] == ["ask"]
    assert len(site.events(run.id, "run.answered")) == 1


def test_an_expiry_is_noticed_by_the_sweep(site):
    site.standing()
    run = site.client.enqueue("human_pipelines:hasty", [])
    result = run.result(timeout=PATIENCE_S)
    assert (result.run_status, result.error.category, result.error.code) == ("failed", "human", "QUESTION_EXPIRED")
    with pytest.raises(ResumeError) as refused:
        run.resume(YES)
    assert refused.value.error_code == "QUESTION_EXPIRED"


def test_branches_with_one_lane_wait_at_the_same_time(site):
    """U-03, design §4: who waits for an answer from a person holds up no one, and the join comes when all have been answered."""
    site.standing(2)
    run = site.client.enqueue("human_pipelines:lanes", [])
    wait_until(lambda: run.status() == "paused", what=site.log)
    assert [each.address for each in run.approvals()] == ["arms/a", "arms/d"]
    run.resume(YES, address="arms/a")
    run.resume(YES, address="arms/d")
    result = run.result(timeout=PATIENCE_S)
    assert (result.run_status, list(result.output)) == ("succeeded", ["a", "b", "c", "d"]), site.log()
    assert len(site.events(run.id, "join.rung")) == 1


def test_a_cancel_of_a_paused_run_closes_its_question(site):
    site.standing()
    run = paused(site, "approval")
    assert run.cancel(reason="never mind")
    assert run.approvals() == []
    with pytest.raises(ResumeError, match="is cancelled"):
        run.resume(YES)


def test_a_token_answers_its_own_question_and_no_other(services, tmp_path):
    """M-452: bound to the run and the attempt, and of no use once that is answered."""
    keys = {"k1": "a secret of sixteen characters"}
    with Site(services, tmp_path, worker=BRISK, signing_keys=keys) as site:
        site.workers(1)
        first, second = (paused(site, "approval") for _ in range(2))
        [token] = [each.token for each in first.approvals()]
        assert [each.state_token for each in site.client.perform(peek_at(site.settings, first.id)).signals] == [token]
        assert site.client.answer(token, YES, actor="ana").run_id == first.id
        assert first.result(timeout=PATIENCE_S).success
        for wrong, code in ((token, "ALREADY_ANSWERED"), (token + "x", "BAD_TOKEN")):
            with pytest.raises(ResumeError) as refused:
                site.client.answer(wrong, YES)
            assert refused.value.error_code == code
        assert second.status() == "paused"
