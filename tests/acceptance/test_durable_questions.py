"""Durable agents in workers: what people answer after everything was stopped goes on at the very call; effects that are settled stay alone."""

from collections import Counter

import pytest

from tests.support.fleet import BRISK, Site, one_process, wait_until

pytestmark = [pytest.mark.acceptance, one_process]


@pytest.fixture(scope="module")
def services(services_to_break):
    return services_to_break


@pytest.fixture(scope="module")
def site(services, tmp_path_factory):
    with Site(services, tmp_path_factory.mktemp("asked"), worker=BRISK | {"max_lost": 20}) as site:
        yield site


def calls(site, run):
    return Counter((site.folder / f"calls-{run.id}").read_text().splitlines())


def paused(site, run):
    wait_until(run.approvals, what=site.log)
    [question] = run.approvals()
    return question


UNDISTURBED = {
    "two": ({"c0": True, "c1": "bo is away"}, "sent to ana; bo is away; seen x", ["send ana", "look x"]),
    "inside": (
        True,
        "{'success': True, 'output': 'sent to inner'}; seen y",
        ["model write 1", "model write 2", "send inner", "look y"],
    ),
    "elsewhere": ({"found": 7}, "{'found': 7}", []),
    "hurry": (None, "Nobody has allowed this call in time.", []),
}


def test_answers_after_a_restart_of_everything_cost_no_call_more(site, services):
    site.workers(1)
    runs = {prompt: site.client.enqueue("durable_questions:questions", prompt) for prompt in UNDISTURBED}
    asked = {prompt: paused(site, run) for prompt, run in runs.items() if prompt != "hurry"}
    assert list(asked["two"].schema["properties"]) == ["c0", "c1"]
    assert "ana" in asked["two"].message
    assert "look y" in calls(site, runs["inside"])  # beside the sub-agent that asked
    site.dismiss()
    services.restart_postgres("immediate")
    services.restart_redis()
    for prompt, run in runs.items():
        if (answer := UNDISTURBED[prompt][0]) is not None:
            run.resume(answer, actor="ana")
    site.workers(1)
    for prompt, (_, output, others) in UNDISTURBED.items():
        assert runs[prompt].result(timeout=60).output == output, prompt
        assert calls(site, runs[prompt]) == Counter([f"model {prompt} 1", f"model {prompt} 2", *others])
        assert len(site.attempts(runs[prompt].id)) == 2
    site.dismiss()


@pytest.mark.parametrize(
    ("effect", "killed", "times", "answer"),
    [
        pytest.param("keyed", "model:1:unit_begun", 1, None, marks=pytest.mark.large),
        ("keyed", "tool:1:unit_answered", 2, None),
        pytest.param("keyed", "tool:1:unit_settled", 1, None, marks=pytest.mark.large),
        pytest.param("once_only", "model:1:unit_begun", 1, {"again": True}, marks=pytest.mark.large),
        ("once_only", "tool:1:during", 1, {"result": "done by hand"}),
        ("once_only", "tool:1:unit_settled", 1, None),
    ],
)
def test_an_effect_that_is_settled_is_repeated_by_no_later_attempt(site, effect, killed, times, answer):
    fleet = site.workers(1)
    run = site.client.enqueue(f"durable_questions:{effect}", f"kill:{killed}")

    def is_over():
        fleet.replace_dead()
        return run.approvals() or run.status() not in ("queued", "running", "paused")

    wait_until(is_over, 60, what=site.log)
    assert bool(run.approvals()) == (answer is not None)
    if answer is not None:
        run.resume(answer)
    result = run.result(timeout=60)
    site.dismiss()
    assert result.output == (answer or {}).get("result", "done for ana")
    made = {call: number for call, number in calls(site, run).items() if call.startswith("effect ana ")}
    assert sum(made.values()) == times
    assert len(made) == 1
    counted = calls(site, run)
    assert counted[f"model kill:{killed} 2"] == 2  # the first answer was refused
