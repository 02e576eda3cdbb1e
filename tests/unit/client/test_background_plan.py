"""A step in the background as the plan, the check and the settings know it (SYS-31)."""

from dataclasses import replace

import pytest

from flujo_client import BackgroundLaunched, HumanInTheLoopStep, ImportStep, Pipeline, PipelineContext, Step, StepConfig
from flujo_client.api import background_runs
from flujo_client.config.manager import ConfigManager, Settings
from flujo_client.errors import ConfigurationError, InfiniteFallbackError, PipelineError, SettingsError
from flujo_client.pipeline.check import check
from flujo_client.pipeline.compile import compile_plan
from flujo_client.pipeline.limits import in_force
from flujo_client.pipeline.pipeline import walk
from tests.support.builders import echo

BEHIND = StepConfig(execution_mode="background")


WORK = Step("work", echo)
LATER = Step("work", echo, config=BEHIND)
KINDS = {
    "step": LATER,
    "human": HumanInTheLoopStep("work", "ok?", config=BEHIND),
    "nested": ImportStep("work", pipeline=WORK, config=BEHIND),
    "parallel": Step.parallel("work", {"a": WORK}, config=BEHIND),
    "loop": Step.loop_until("work", WORK, lambda output, context: True, config=BEHIND),
    "router": Step.dynamic_parallel_branch("work", echo, {"a": WORK}, config=BEHIND),
}


def compiled(*steps):
    return compile_plan(Pipeline(list(steps)))


def checks(*steps, **rest):
    check(Pipeline(list(steps), context_model=PipelineContext, **rest), allowed=())


@pytest.mark.parametrize("kind", KINDS)
def test_any_step_may_run_in_the_background(kind):
    """It is a container of itself, under its own name."""
    checks(KINDS[kind])
    [node] = compiled(KINDS[kind]).nodes
    [inner] = node.bodies["body"]
    assert (node.name, node.kind, inner.name, inner.kind) == ("work", "background", "work", kind)
    assert [path for path, _ in walk(Pipeline([KINDS[kind]]))][:2] == ["work", "work/body/work"]


def test_a_step_that_does_not_is_what_it_was():
    """No fingerprint changes for those who do not use it."""
    assert "execution_mode" not in compiled(WORK).nodes[0].traits["config"]
    assert compiled(WORK).fingerprint == compiled(replace(WORK, config=StepConfig(execution_mode="sync"))).fingerprint
    assert compiled(LATER).fingerprint != compiled(WORK).fingerprint


def test_it_holds_its_fallback():
    [node] = compiled(LATER.fallback(Step("other", echo))).nodes
    [inner] = node.bodies["body"]
    assert (node.kind, inner.kind, list(inner.bodies)) == ("background", "fallback", ["primary", "fallback"])


def test_a_fallback_in_the_background_is_asked_once_too():
    """C-01."""
    [node] = compiled(
        WORK.fallback(replace(LATER, name="other", config=BEHIND.model_copy(update={"max_retries": 4})))
    ).nodes
    [behind] = node.bodies["fallback"]
    assert [each.max_attempts for each in behind.bodies["body"]] == [1]


@pytest.mark.parametrize("option", [{"updates_context": True}, {"sink_to": "scratchpad"}])
def test_what_would_write_to_the_context_is_refused(option):
    """Nothing comes back: the pipeline has gone on."""
    with pytest.raises(
        PipelineError, match=f"step 'work': it runs in the background, .* so {next(iter(option))} has no effect"
    ):
        checks(replace(LATER, **option))
    checks(Pipeline([replace(WORK, **option)], name="both").as_step("b", config=BEHIND))


def test_a_persons_answer_has_no_way_back_either():
    with pytest.raises(PipelineError, match="so sink_to has no effect"):
        checks(HumanInTheLoopStep("ask", "ok?", sink_to="scratchpad", config=BEHIND))


def test_a_container_has_no_other_config():
    """It would count for nothing."""
    wrong = Step.parallel("p", {"a": WORK}, config=StepConfig(max_retries=5, execution_mode="background"))
    with pytest.raises(PipelineError, match=r"step 'p.*': a container's config may only set execution_mode"):
        checks(wrong)


@pytest.mark.parametrize(
    "step", [replace(WORK, config=None), Step.parallel("p", {"a": WORK}, config={"max_retries": 2})]
)
def test_what_is_no_config_is_told(step):
    with pytest.raises(PipelineError, match=r"config must be a StepConfig, got a (NoneType|dict)"):
        checks(step)


def test_one_that_is_its_own_fallback_is_found():
    step = replace(LATER)
    object.__setattr__(step, "fallback_step", step)
    with pytest.raises(InfiniteFallbackError):
        checks(step)


def test_an_unknown_mode_is_refused_where_it_is_written():
    with pytest.raises(ValueError, match="'sync' or 'background'"):
        StepConfig(execution_mode="parallel")


def test_the_outcome_says_where_it_continues():
    """§2.3."""
    assert BackgroundLaunched(task_id="run_1.2", step_name="mail").model_dump() == {
        "task_id": "run_1.2",
        "step_name": "mail",
    }


def test_where_nothing_is_resumed_that_is_said_before_anybody_is_asked():
    settings = Settings(background_tasks={"resumability": False})
    for verb in (background_runs.resume(settings, "run_1"), background_runs.retry_failed(settings, "run_1", 3)):
        with pytest.raises(ConfigurationError, match="resuming background steps is turned off"):
            next(verb)


@pytest.mark.parametrize("hours", [0, -1, float("nan")])
def test_stale_is_what_is_older_than_something(hours):
    with pytest.raises(ConfigurationError, match="stale_hours must be a number of hours above 0"):
        next(background_runs.fail_stale(Settings(), hours))


def test_the_defaults_are_a_dollar_ten_thousand_tokens_and_a_day():
    """§2.7."""
    tasks = Settings().background_tasks
    assert (tasks.tracking, tasks.resumability, tasks.quota) == (True, True, True)
    assert (tasks.max_cost_usd, tasks.max_tokens, tasks.stale_hours) == (1.0, 10_000, 24.0)


def test_the_file_counts(tmp_path):
    """U-07: the section is read."""
    file = tmp_path / "flujo.toml"
    file.write_text("[background_tasks]\nmax_tokens = 7\nresumability = false\n")
    settings = ConfigManager(file, environ={"FLUJO_BACKGROUND_TASKS_STALE_HOURS": "2"}).settings()
    assert (settings.background_tasks.max_tokens, settings.background_tasks.resumability) == (7, False)
    assert settings.background_tasks.stale_hours == 2


@pytest.mark.parametrize(
    ("line", "said"), [("tracking = false", "every run is recorded"), ("stale_hours = 0", "greater than 0")]
)
def test_what_cannot_be_is_refused(tmp_path, line, said):
    file = tmp_path / "flujo.toml"
    file.write_text(f"[background_tasks]\n{line}\n")
    with pytest.raises(SettingsError, match=said):
        ConfigManager(file, environ={}).settings()


def test_a_quota_is_in_force_only_where_something_runs_in_the_background():
    """M-467: who does not use it pays nothing."""
    given = {"run": "r", "background": Settings().background_tasks.limits()}
    assert in_force(Settings().budgets, compiled(WORK), None, **given) is None
    inside = compiled(Step.parallel("p", {"a": LATER}))
    assert in_force(Settings().budgets, inside, None, **given)["background"]["total_tokens_limit"] == 10_000
