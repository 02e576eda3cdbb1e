"""The reasoning precheck of an attempt: its gates and its verdicts (SYS-24, M-194)."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from flujo_client.contract.context import PipelineContext
from flujo_client.contract.outcome import NO_USAGE, Usage
from flujo_client.contract.processing import PrecheckSettings
from flujo_worker.agents.answer import AgentAnswer
from flujo_worker.attempts.precheck import PlanCheckValidator, Precheck
from flujo_worker.observe.log import collecting_events
from flujo_worker.runtime.attempt_run import AttemptRun
from tests.support.builders import enqueued
from tests.support.performing import performing

PLAN = "look, then leap"
PLANNED = f"<thinking>{PLAN}</thinking> go"
BARE = "go"
SCHEMA = {"type": "object", "required": ["name", "age"]}
THREADS = ThreadPoolExecutor(2)


class Recorder:
    """An agent that answers one thing after another, the last forever, and keeps what it was asked."""

    def __init__(self, *answers: Any, spent: Usage = NO_USAGE) -> None:
        self.answers, self.spent, self.asked, self.options = list(answers), spent, [], []

    async def run(self, data: Any, **options: Any) -> Any:
        self.asked.append(data)
        self.options.append(options)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return AgentAnswer(answer, self.spent)


class Desk:
    """One attempt's precheck; `told` holds its events as (name, attributes)."""

    def __init__(self, *, context: Any = None, schema: Any = None, shadow: bool = False, **settings: Any) -> None:
        self.context = context
        self.precheck = Precheck(
            PrecheckSettings(**{"enabled": True, **settings}),
            context=context,
            agent_of=lambda agent: agent,
            threads=THREADS,
            schema=schema,
            shadow=shadow,
        )
        self.told: list[tuple[str, dict[str, Any]]] = []

    def before(self, data: Any = PLANNED) -> Any:
        return self._run(self.precheck.before(data))

    def after(self, text: str | None, value: Any = None) -> None:
        self._run(self.precheck.after(text, value))

    @property
    def verdicts(self) -> list[dict[str, Any]]:
        return [data for name, data in self.told if name == f"aros.reasoning.precheck.{data.get('result')}"]

    @property
    def gates(self) -> list[dict[str, Any]]:
        return [data for name, data in self.told if name == "reasoning.validation"]

    def _run(self, work: Any) -> Any:
        with collecting_events(enqueued().first, worker="w") as story, performing(AttemptRun()):
            try:
                return asyncio.run(work)
            finally:
                self.told += [(event.name, event.data) for event in story]


def refusing(feedback: str = "too bold", **desk: Any) -> Desk:
    """A precheck whose validator refuses every plan."""
    return Desk(validator_agent=Recorder((False, feedback)), **desk)


def test_the_precheck_is_off_by_default():
    """M-110, M-145, M-166."""
    judge = Recorder(False)
    desk = Desk(enabled=PrecheckSettings().enabled, validator_agent=judge, required_context_keys=("gone",))
    assert desk.before() == PLANNED
    desk.after(PLANNED)
    assert (desk.told, judge.asked) == ([], [])


def test_a_plan_that_passes_is_told_and_changes_nothing():
    """M-113, M-124."""
    desk = Desk(validator_agent=Recorder({"passed": True, "score": 0.9}), inject_feedback="prepend")
    assert desk.before() == PLANNED
    assert desk.told == [
        ("reasoning.validation", {"result": "pass", "score": 0.9, "gate": "validator"}),
        ("aros.reasoning.precheck.pass", {"result": "pass", "score": 0.9, "reason": "validator"}),
    ]


def test_a_plan_that_fails_is_told_with_its_feedback():
    """M-120, M-124, M-162, U-08: every event carries its result."""
    desk = refusing()
    desk.before()
    assert desk.told == [
        ("reasoning.validation", {"result": "fail", "gate": "validator"}),
        ("aros.reasoning.precheck.fail", {"result": "fail", "reason": "refused", "feedback": "too bold"}),
    ]


@pytest.mark.parametrize(("score", "result"), [(0.69, "fail"), (0.70, "pass")])
def test_a_scorer_alone_decides_by_the_threshold(score, result):
    """M-117."""
    desk = Desk(validator_agent=lambda _plan: score, score_threshold=0.7)
    desk.before()
    assert [(each["result"], each["score"]) for each in desk.verdicts] == [(result, score)]


@pytest.mark.parametrize("cap", [200, 17])
def test_the_cap_reaches_the_validator(cap):
    """M-116, U-10."""
    judge = Recorder(True)
    Desk(validator_agent=judge, max_tokens=cap).before()
    assert judge.options == [{"max_tokens": cap}]


def test_the_validator_gets_the_plan_alone():
    """M-113."""
    judge = Recorder(True)
    Desk(validator_agent=judge).before()
    assert judge.asked == [PLAN]


def test_the_validator_is_told_the_goal_if_the_context_has_one():
    """M-145."""
    judge = Recorder(True)
    Desk(
        validator_agent=judge, goal_context_key="scratchpad.goal", context=PipelineContext(scratchpad={"goal": "g"})
    ).before()
    assert judge.asked == [{"plan": PLAN, "goal": "g"}]


def test_the_agents_are_found_by_their_references():
    """M-115."""
    judge = Recorder(True)
    settings = PrecheckSettings(enabled=True, validator_agent="agents:plan_checker")
    found = {"agents:plan_checker": judge}.__getitem__
    precheck = Precheck(settings, context=None, agent_of=found, threads=THREADS, schema=None, shadow=False)
    asyncio.run(precheck.before(PLANNED))
    assert judge.asked == [PLAN]


def test_the_validator_can_be_asked_on_its_own():
    """M-113."""
    validator = PlanCheckValidator(Recorder("0.5", spent=Usage(1, 2, 1)), max_tokens=9, threads=THREADS)
    verdict, usage = asyncio.run(validator.check(PLAN))
    assert (verdict.score, usage) == (0.5, Usage(1, 2, 1))


def test_missing_context_keys_are_listed():
    """M-112: absent or null; the validator is not paid for a plan that cannot work."""
    judge = Recorder(True)
    desk = Desk(validator_agent=judge, context={"a": 1, "b": None}, required_context_keys=("a", "b", "c"))
    desk.before()
    assert [(each["result"], each["keys"]) for each in desk.verdicts] == [("fail", ["b", "c"])]
    assert judge.asked == []


def test_context_keys_that_are_there_pass():
    """M-112."""
    desk = Desk(context=PipelineContext(initial_prompt="p"), required_context_keys=("initial_prompt",))
    desk.before()
    assert desk.verdicts == [{"result": "pass", "reason": "context_keys", "keys": ["initial_prompt"]}]


@pytest.mark.parametrize(
    ("asked", "said", "verdict"),
    [
        (PLANNED, "done", ("fail", "refused")),
        (BARE, PLANNED, ("fail", "refused")),
        (BARE, "done", ("pass", "context_keys")),
    ],
    ids=["plan in the input", "plan in the answer", "no plan"],
)
def test_a_precheck_with_context_keys_is_one_precheck(asked, said, verdict):
    """M-112, U-08: its verdict is counted once, whatever else was looked at."""
    desk = refusing(context={"a": 1}, required_context_keys=("a",))
    desk.before(asked)
    desk.after(said)
    assert [(each["result"], each["reason"]) for each in desk.verdicts] == [verdict]


def test_a_plan_that_lacks_the_basics_is_not_worth_a_validator():
    """M-111."""
    judge = Recorder(True)
    desk = Desk(validator_agent=judge, schema=SCHEMA)
    desk.before({"plan": '{"name": "ana"}'})
    assert [(each["reason"], each["keys"]) for each in desk.verdicts] == [("missing_basics", ["age"])]
    assert judge.asked == []


@pytest.mark.parametrize("plan", [PLAN, '{"name": "ana", "age": null}', "[1]"])
def test_any_other_plan_is_judged(plan):
    """M-111: prose is not a candidate, and a glance is not a validation."""
    judge = Recorder(True)
    Desk(validator_agent=judge, schema=SCHEMA).before({"plan": plan})
    assert judge.asked == [plan]


def test_a_plan_in_json_is_no_candidate_where_no_object_is_asked_for():
    judge = Recorder(True)
    Desk(validator_agent=judge, schema={"type": "string"}).before({"plan": "{}"})
    assert judge.asked == ["{}"]


def test_without_a_plan_anywhere_nothing_is_asked_or_changed():
    """M-114, C-33."""
    judge = Recorder(False)
    desk = Desk(validator_agent=judge, inject_feedback="prepend")
    assert desk.before(BARE) == BARE
    desk.after("done")
    assert desk.told == [("aros.reasoning.precheck.skipped", {"result": "skipped", "reason": "no_plan"})]
    assert judge.asked == []


def test_the_input_alone_does_not_conclude_that_there_is_no_plan():
    """C-33."""
    desk = refusing()
    desk.before(BARE)
    assert desk.told == []


def test_a_plan_in_the_models_text_is_judged_when_the_input_had_none():
    """C-33: the early short pass."""
    desk = refusing()
    desk.before(BARE)
    desk.after(PLANNED)
    assert [each["result"] for each in desk.verdicts] == ["fail"]
    assert desk.precheck.feedback == "too bold"


def test_a_plan_in_the_input_is_the_only_one_judged():
    """M-125: an attempt pays for one verdict."""
    desk = refusing()
    desk.before(PLANNED)
    desk.after("<thinking>other</thinking>")
    assert len(desk.verdicts) == 1


def test_an_attempt_concludes_once():
    """M-125: whoever asks `after` again gets nothing told twice."""
    desk = Desk()
    desk.before(BARE)
    desk.after(None)
    desk.after(None)
    assert desk.verdicts == [{"result": "skipped", "reason": "no_plan"}]


def test_an_output_that_lacks_the_basics_is_not_worth_a_validator():
    """M-111, C-33."""
    judge = Recorder(True)
    desk = Desk(validator_agent=judge, schema=SCHEMA)
    desk.before(BARE)
    desk.after(PLANNED, {"name": "ana"})
    assert (desk.precheck.feedback, judge.asked) == ("the output lacks age", [])


def test_an_output_of_another_kind_is_not_worth_a_validator():
    """M-111."""
    desk = Desk(validator_agent=Recorder(True), schema=SCHEMA)
    desk.before(BARE)
    desk.after(PLANNED, [1])
    assert desk.precheck.feedback == "the output has another type than the schema"


def test_a_plan_that_no_one_is_to_judge_is_skipped():
    desk = Desk()
    desk.before()
    assert desk.verdicts == [{"result": "skipped", "reason": "no_validator"}]


def test_samples_that_agree_spare_the_validator():
    """M-118, M-119, C-04."""
    judge = Recorder(False)
    desk = Desk(validator_agent=judge, consensus_agent=Recorder("look, then leap", "Look then leap!"))
    desk.before()
    assert desk.gates == [{"result": "pass", "score": 1.0, "gate": "consensus", "samples": 2}]
    assert desk.verdicts == [{"result": "pass", "reason": "agreement", "score": 1.0}]
    assert judge.asked == []


def test_samples_that_disagree_call_the_validator():
    """M-118, C-04: whose word is the last."""
    desk = Desk(validator_agent=Recorder(True), consensus_agent=Recorder("look", "leap"))
    desk.before()
    assert [(each["gate"], each["result"]) for each in desk.gates] == [("consensus", "fail"), ("validator", "pass")]
    assert [each["result"] for each in desk.verdicts] == ["pass"]


def test_disagreement_without_a_validator_is_only_told():
    """C-04."""
    desk = Desk(consensus_agent=Recorder("look", "leap"), inject_feedback="prepend")
    assert desk.before() == PLANNED
    assert desk.verdicts == [{"result": "fail", "reason": "disagreement", "score": 0.0}]
    assert desk.precheck.feedback is None


def test_an_agreement_equal_to_the_threshold_is_enough():
    """M-119."""
    desk = Desk(consensus_agent=Recorder("look leap", "look"), consensus_threshold=0.5)
    desk.before()
    assert desk.gates[0]["result"] == "pass"


def test_every_sample_is_made_from_the_input_under_the_cap():
    """M-116, M-118."""
    planner = Recorder(PLAN)
    Desk(consensus_agent=planner, consensus_samples=3, max_tokens=50).before()
    assert (planner.asked, planner.options) == ([PLANNED] * 3, [{"max_tokens": 50}] * 3)


def test_of_a_sample_only_its_plan_counts():
    """M-119: what else a planner says is not compared."""
    desk = Desk(consensus_agent=Recorder(f"Sure! {PLANNED}", PLAN))
    desk.before()
    assert desk.gates[0]["score"] == 1


def test_samples_need_not_be_texts():
    """M-119."""
    desk = Desk(consensus_agent=Recorder({"steps": ["look"]}, '{"steps": ["look"]}'))
    desk.before()
    assert desk.gates[0]["score"] == 1
