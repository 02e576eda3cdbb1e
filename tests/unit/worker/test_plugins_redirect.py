"""A plugin that sends the input to another agent: who is asked, with what, for how long, and where it ends (SYS-11)."""

import asyncio

import pytest
from pydantic import BaseModel

from flujo_client import AgentProcessors, Pipeline, PluginOutcome, Step, StepConfig
from flujo_client.config.manager import Settings
from flujo_client.contract.outcome import Usage
from flujo_client.errors import AgentIOValidationError, InfiniteRedirectError
from flujo_worker.agents.answer import AgentAnswer
from flujo_worker.runtime.attempt_run import charge
from flujo_worker.testing import LocalEngine

SPENT = Usage(10, 5, 1, 0.25)


class Agent:
    """Answers, and remembers what it was asked."""

    def __init__(self, answer="poor", error=None, output_type=str):
        self.answer, self.error, self.output_type, self.asked = answer, error, output_type, []

    async def run(self, data, *, guidance=None, temperature=None, context=None):
        self.asked.append((data, guidance, temperature))
        if context is not None:
            context.scratchpad["asked"] = type(self).__name__
        if self.error is not None:
            charge(self.error, SPENT)
            raise self.error
        return AgentAnswer(self.answer, SPENT)


class Senior(Agent):
    """Another agent, which is what its class says."""


class Chief(Agent):
    """A third one."""


class Count(BaseModel):
    count: int


class Sends:
    """A plugin that wants another agent for every answer but `good`."""

    def __init__(self, *to, feedback="too poor", on=None):
        self.to, self.feedback, self.on, self.seen = list(to), feedback, on, []

    def validate(self, data):
        self.seen.append(data)
        if data == "good" or (self.on is not None and data != self.on):
            return PluginOutcome(success=True)
        to = self.to.pop(0) if len(self.to) > 1 else self.to[0]
        return PluginOutcome(success=False, feedback=self.feedback, redirect_to=to)


def run_one(engine, agent, *plugins, value="in", context=None, config=None, **rest):
    config = config or StepConfig(max_retries=0)
    return engine.run(Pipeline([Step("s", agent, config=config, plugins=plugins, **rest)]), value, context=context)


def fault(engine, result):
    return engine.history(result.run_id)[-1].fault


def test_the_other_agents_answer_is_the_output(engine):
    """§2.5: within the same attempt."""
    result = run_one(engine, Agent(), Sends(Senior("good")))
    assert (result.output, result.step_history[0].attempts, len(engine.history(result.run_id))) == ("good", 1, 1)


def test_it_is_asked_what_the_first_was_asked_with_the_plugins_feedback(engine):
    """What prompt processors made of the step's input, and its model options; they run once."""
    calls = []
    shout = AgentProcessors(prompt_processors=[lambda data: calls.append(data) or data.upper()])
    first, senior = Agent(), Senior("good")
    run_one(engine, first, Sends(senior), processors=shout, config=StepConfig(max_retries=0, temperature=0.5))
    assert (calls, first.asked, senior.asked) == (["in"], [("IN", None, 0.5)], [("IN", "too poor", 0.5)])


def test_without_feedback_it_is_told_what_the_attempt_was_told(engine):
    """Guidance from the attempt before is not lost."""
    senior = Senior(error=AgentIOValidationError("no"))
    run_one(engine, Agent(), Sends(senior, feedback=None), config=StepConfig(max_retries=1))
    assert [guidance for _, guidance, _ in senior.asked] == [None, "no"]


def test_its_answer_passes_output_processors_and_all_plugins_again(engine):
    """The one that passed the first answer judges the second too."""
    first, sends = Sends(Agent(), on="never"), Sends(Senior(), on="poor!")
    own = AgentProcessors(output_processors=[lambda data: data + "!"])
    senior = sends.to[0] = Senior("fine")
    result = run_one(engine, Agent(), (first, 9), sends, processors=own)
    assert (result.output, len(senior.asked)) == ("fine!", 1)
    assert (first.seen, sends.seen) == (["poor!", "fine!"], ["poor!", "fine!"])


def test_its_answer_is_read_by_aros(engine):
    """Where AROS acts on the step."""

    def wants_three(data):
        return PluginOutcome(success=True, redirect_to=None if data == Count(count=3) else senior)

    senior = Senior('```json\n{"count": 3}\n```', output_type=Count)
    judge = type("Judge", (), {"validate": staticmethod(wants_three)})()
    result = run_one(engine, Agent('{"count": 1}', output_type=Count), judge, processing={"aop": "minimal"})
    assert result.output == Count(count=3)
    [told] = [each.data for each in engine.story(result.run_id) if each.name == "output.coercion.success"]
    assert told["agent"] == "Senior"


def test_only_the_first_agent_is_prechecked(engine):
    """M-125: one attempt judges one plan."""
    judged = []
    precheck = {"enabled": True, "validator_agent": lambda plan, **_: judged.append(plan) or "0.9"}
    plan = "<thinking>first this, then that</thinking>"
    sends = Sends(Senior("good"))
    result = run_one(
        engine, Agent(plan), sends, processing={"aop": "minimal", "reasoning_precheck": precheck}, value="go"
    )
    assert (result.output, judged) == ("good", ["first this, then that"])


def test_validators_judge_only_the_last_answer(engine):
    seen = []
    run_one(engine, Agent(), Sends(Senior("good")), validators=[lambda output: seen.append(output) or True])
    assert seen == ["good"]


def test_a_redirect_may_lead_to_a_third_agent(engine):
    result = run_one(engine, Agent(), Sends(Senior(), Chief("good")))
    assert result.output == "good"


def test_a_redirect_outranks_what_else_the_plugin_says(engine):
    """A success, and another output, are about an answer that does not count any more."""
    said = PluginOutcome(success=True, new_solution="mine", redirect_to=Senior("good"))
    both = type("Both", (), {"validate": lambda self, data: PluginOutcome(success=True) if data == "good" else said})()
    assert run_one(engine, Agent(), both).output == "good"


def senior(data):
    return "good"


def test_a_redirect_may_be_a_reference(engine):
    result = run_one(engine, Agent(), Sends(f"{__name__}:senior"))
    assert result.output == "good"


def test_a_reference_outside_the_allowed_imports_is_not_followed():
    """M-014."""
    with LocalEngine(Settings(allowed_imports=("tests.support.builders",))) as engine:
        result = run_one(engine, Agent(), Sends("os:getcwd"), config=StepConfig(max_retries=3))
    assert (result.success, fault(engine, result).category) == (False, "configuration")
    assert "outside the allowed imports" in result.step_history[0].feedback


@pytest.mark.parametrize("thing", [7, "tests.support.builders:BACKOFF"])
def test_what_is_no_agent_is_refused(engine, thing):
    result = run_one(engine, Agent(), Sends(thing))
    assert fault(engine, result).category == "plugin"
    assert "Sends: redirect_to is a" in result.step_history[0].feedback


def test_an_agent_that_was_tried_already_ends_the_run_as_control_flow(engine):
    """M-042, C-23: never a failure that is tried again; class, message and code reach the client."""
    first, senior = Agent(), Senior()
    result = run_one(engine, first, Sends(senior), config=StepConfig(max_retries=3))
    assert (len(first.asked), len(senior.asked)) == (1, 1)
    [attempt] = engine.history(result.run_id)
    assert (attempt.reason, attempt.fault.category, result.error.code) == (
        "aborted",
        "control_flow",
        "INFINITE_REDIRECT",
    )
    with pytest.raises(
        InfiniteRedirectError, match="step 's': plugin Sends redirects to Senior, which has already been tried"
    ):
        result.raise_for_status()


def test_the_steps_own_agent_counts_as_tried_by_whatever_name(engine):
    """An agent and a reference to it are one agent."""
    OWN.asked.clear()
    result = run_one(engine, OWN, Sends(f"{__name__}:OWN"))
    assert (result.error.code, len(OWN.asked)) == ("INFINITE_REDIRECT", 1)


OWN = Agent()


def test_every_attempt_may_try_them_all(engine):
    """What was tried is known to one attempt only."""
    agent = Senior(error=ValueError("no"))
    result = run_one(engine, Agent(), Sends(agent), config=StepConfig(max_retries=2))
    assert (len(agent.asked), fault(engine, result).category) == (3, "agent")


def test_an_endless_redirect_passes_through_containers_and_fallbacks(engine):
    """C-20: nothing stands in for a run that goes in circles."""
    circles = Step("s", Agent(), plugins=[Sends(Agent())], fallback_step=Step("other", Senior("good")))
    result = engine.run(Pipeline([Step.parallel("p", {"a": circles}, on_branch_failure="ignore")]), "in")
    with pytest.raises(InfiniteRedirectError):
        result.raise_for_status()


def test_the_other_agents_own_failure_is_an_agents_and_is_tried_again(engine):
    """C-02: each failure keeps its domain."""
    first = Agent()
    result = run_one(engine, first, Sends(Senior(error=ValueError("no"))), config=StepConfig(max_retries=1))
    assert (len(first.asked), fault(engine, result).category) == (2, "agent")


def test_one_timeout_covers_all_agents_of_an_attempt(engine):
    """The second has what the first left of it."""
    slept = []

    async def slow(data):
        await asyncio.sleep(0.2)
        return "poor"

    async def slower(data):
        try:
            await asyncio.sleep(0.95)
        except asyncio.CancelledError:
            slept.append("stopped")
            raise

    result = run_one(engine, slow, Sends(slower), config=StepConfig(max_retries=0, timeout_s=1.0))
    assert slept == ["stopped"]
    assert result.step_history[0].feedback.endswith("TimeoutError: no answer within 1 s")


@pytest.mark.parametrize(
    ("answers", "calls"),
    [
        ([Senior("good")], 2),
        ([Senior(error=ValueError("no"))], 2),
        ([Senior(), Chief("good")], 3),
        ([Senior(), Chief(error=ValueError("no"))], 3),
        ([Agent()], 1),
    ],
    ids=["answered", "failed", "two redirects", "the second failed", "in circles"],
)
def test_what_all_agents_spent_is_the_attempts(engine, answers, calls):
    """M-044: also where the attempt fails."""
    result = run_one(engine, Agent(), Sends(*answers))
    assert (result.total_tokens, result.total_cost_usd) == (15 * calls, 0.25 * calls)


def test_what_they_did_to_the_context_is_kept_together(engine):
    """They work on the attempt's one copy."""
    result = run_one(engine, Agent(), Sends(Senior("good")), context={})
    assert result.final_pipeline_context.scratchpad["asked"] == "Senior"


def test_a_plugin_that_answers_with_something_else_is_named(engine):
    judge = type("Judge", (), {"validate": lambda self, data: True})()
    result = run_one(engine, Agent(), judge)
    assert fault(engine, result).category == "plugin"
    assert "plugin Judge must return a PluginOutcome, got bool" in result.step_history[0].feedback


def test_each_redirect_is_an_event(engine):
    """It says who sent the work to whom, and why; one that would go in circles is none."""
    result = run_one(engine, Agent(), Sends(Senior("good")))
    [event] = [each for each in engine.story(result.run_id) if each.name == "step.redirected"]
    assert event.attempt == engine.history(result.run_id)[0].key
    told = {"plugin": "Sends", "agent": "Senior", "feedback": "too poor"}
    assert (event.level, event.data) == ("info", told)
    circles = run_one(engine, agent := Agent(), Sends(agent))
    assert "step.redirected" not in {each.name for each in engine.story(circles.run_id)}
