"""What users of the original write: options of `Flujo`, short ways to steps, names of results and errors (M-032)."""

import asyncio

import pytest

from flujo_client import Flujo, ImportStep, Pipeline, Step, StepResult, UsageLimits
from flujo_client.config.manager import Settings
from flujo_client.errors import (
    ConfigurationError,
    ContextFieldError,
    ContextMergeError,
    FeatureDisabled,
    IdempotencyConflict,
    MissingAgentError,
    PipelineError,
)
from flujo_worker.testing import LocalEngine


def double(value):
    return 2 * value


def tell(value, *, context=None):
    return value, context


class Agent:
    async def run(self, value, *, resources):
        return value, resources


doubling = Pipeline([Step("double", double)], name="doubling", version="2")


@pytest.mark.parametrize(
    "options",
    [
        {
            "backend": None,
            "backend_factory": None,
            "executor_factory": None,
            "local_tracer": None,
            "state_providers": None,
        },
        {"delete_on_completion": False, "persist_state": True, "enable_tracing": True},
        {"pipeline_name": "doubling", "pipeline_version": "2", "pipeline_id": "d"},
    ],
)
def test_options_of_the_original_with_their_defaults_are_taken(options):
    """§2.1: nothing is connected to before something runs."""
    Flujo(doubling, **options).close()


@pytest.mark.parametrize(
    ("options", "way_out"),
    [
        ({"persist_state": False}, "LocalEngine"),
        ({"delete_on_completion": True}, "every run is stored"),
        ({"enable_tracing": False}, "every run has a trace"),
        ({"backend": object()}, "flujo worker"),
        ({"state_backend": object()}, "FLUJO_DATABASE_URL"),
        ({"state_backend": "sqlite:///runs.db"}, "FLUJO_DATABASE_URL"),
        ({"state_backend": "postgresql://db/flujo", "settings": Settings()}, "give one of them"),
        ({"pipeline_name": "tripling"}, r"Pipeline\(…, name='tripling'\)"),
        ({"pipeline_version": "3"}, r"Pipeline\(…, version='3'\)"),
    ],
)
def test_an_option_that_would_have_no_effect_is_refused_with_the_way_out(options, way_out):
    """§2.1."""
    with pytest.raises(ConfigurationError, match=way_out):
        Flujo(doubling, **options)


def test_another_option_is_a_type_error():
    with pytest.raises(TypeError, match="unexpected keyword argument 'piepline_id'"):
        Flujo(doubling, piepline_id="x")


def test_a_state_backend_is_the_database(monkeypatch):
    """§2.1 `state_backend=`."""
    monkeypatch.setenv("FLUJO_BROKER_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("FLUJO_DATABASE_URL", "postgresql://127.0.0.1:1/project")
    with Flujo(doubling, state_backend="postgresql://127.0.0.1:1/mine") as flujo:
        assert flujo.client.settings.database() == "postgresql://127.0.0.1:1/mine"
        assert flujo.client.settings.broker() == "redis://127.0.0.1:1/0"


def test_a_facade_is_a_step_of_another_pipeline(engine):
    """§2.1 `as_step`."""
    limits = UsageLimits(total_tokens_limit=9)
    step = Flujo(doubling, usage_limits=limits).as_step("twice", on_failure="skip")
    assert isinstance(step, ImportStep)
    assert (step.name, step.inherit_context, step.on_failure, step.usage_limits) == ("twice", True, "skip", limits)
    named = Flujo(f"{__name__}:doubling").as_step("again", inherit_context=False)
    assert engine.run(step >> named >> Flujo(Step("last", double)).as_step("last"), 1).output == 8
    with pytest.raises(ConfigurationError, match="context from the pipeline around it"):
        Flujo(doubling, initial_context_data={"a": 1}).as_step("twice")


def test_a_step_that_validates_fails_or_only_tells():
    """§2.3 `validate_step`: non-strict keeps the output and records `validation_passed`."""

    def small(output):
        return output < 10, "too large"

    def judged(value, **options):
        with LocalEngine() as engine:
            [step] = engine.run(
                Pipeline([Step.validate_step(double, validators=[small], **options)]), value
            ).step_history
        assert step.name == "validate"
        return step

    failed = judged(7)
    assert (failed.success, failed.output) == (False, None)
    lenient = judged(7, strict=False)
    assert (lenient.success, lenient.output) == (True, 14)
    assert lenient.metadata == {"validation_passed": False, "validation_feedback": "small: too large"}
    assert judged(1, strict=False).metadata["validation_passed"] is True
    assert "validation_passed" not in judged(1).metadata


def test_a_step_of_a_mapper(engine):
    """§2.3 `from_mapper`."""
    assert engine.run(Step.from_mapper(double) >> Step.from_mapper(double, name="again"), 1).output == 4
    assert Step.from_mapper(double).name == "double"


@pytest.mark.parametrize("key", ["n", "größe", "it's", "a\\b"])
def test_a_step_uses_one_entry_of_its_input(engine, key):
    """§2.3 `use_input(key)`: the value itself, not its text."""
    assert engine.run(Pipeline([Step("double", double).use_input(key)]), {key: [3], "other": 0}).output == [3, 3]


def test_a_step_that_has_an_input_takes_no_other():
    with pytest.raises(PipelineError, match="step 'a' has an `input` already"):
        Step("a", double, input="{{ context.n }}").use_input("n")
    with pytest.raises(PipelineError, match="which takes no `input`"):
        Step.parallel("p", {"a": Step("a", double)}).use_input("n")


def test_an_agent_is_called_alone():
    """§2.3 `arun`: with what it takes by name, and without any engine."""
    assert asyncio.run(Step("a", double).arun(2)) == 4
    assert asyncio.run(Step("a", tell).arun(1, context="c", resources="r")) == (1, "c")
    assert asyncio.run(Step("a", Agent()).arun(1, context="c", resources="r")) == (1, "r")
    assert asyncio.run(Step("a", f"{__name__}:double").arun(3)) == 6
    with pytest.raises(MissingAgentError, match="step 'p' has no agent"):
        asyncio.run(Step.parallel("p", {"a": Step("a", double)}).arun(1))


def test_metadata_has_both_names():
    """§2.4: `metadata_`, alias `metadata`."""
    assert StepResult(name="a", metadata_={"x": 1}).metadata == {"x": 1}


def test_a_field_that_the_context_lacks_is_an_error_of_its_own(engine):
    """§2.10: raised where the output goes, recorded with its class and code."""
    assert issubclass(ContextFieldError, ContextMergeError)
    result = engine.run(Pipeline([Step("a", double, sink_to="nowhere.n")]), 1, context={"n": 1})
    assert (result.error.type_name, result.error.code) == ("ContextFieldError", "CONTEXT_FIELD")


def test_what_the_settings_turn_off_is_an_error_of_its_own():
    """§2.10 `FeatureDisabled`: what `[background_tasks]` does not allow."""
    from flujo_client.api import background_runs

    settings = Settings(background_tasks={"resumability": False})
    with pytest.raises(FeatureDisabled, match="resumability = true"):
        next(background_runs.resume(settings, "run_1"))


def test_the_engine_for_tests_takes_run_ids_as_the_client_does(engine):
    """§2.1 `run_id`: the same id is the same run, and is refused for other work or another tenant's."""
    assert engine.run(doubling, 1, run_id="of-mine").run_id == "of-mine"
    assert engine.run(doubling, 1, run_id="of-mine").output == 2
    assert len(engine.history("of-mine")) == 1
    for value, tenant in ((2, ""), (1, "somebody else")):
        with pytest.raises(IdempotencyConflict, match="of-mine"):
            engine.run(doubling, value, run_id="of-mine", tenant=tenant)
    with pytest.raises(ConfigurationError, match="run id"):
        engine.run(doubling, 1, run_id="not: an id")
