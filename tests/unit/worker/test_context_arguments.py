"""Every function around an agent, and every condition, receives the context in the same way: by name or by place (F7)."""

import pytest

from flujo_client import ConditionalStep, LoopStep, Pipeline, PipelineContext, Step
from flujo_client.contract.verdict import PluginOutcome, validator
from flujo_client.pipeline.step import AgentProcessors
from flujo_worker.runtime.call_args import CONTEXT, arranged


class Ctx(PipelineContext):
    who: str = "Ada"


class Recorder:
    """Functions of every shape that note what they were given as context, and pass their data on."""

    def __init__(self, answer=None):
        self.answer, self.given = answer, []

    def _seen(self, data, context):
        self.given.append(getattr(context, "who", context))
        return data if self.answer is None else self.answer

    def named(self, data, context):
        return self._seen(data, context)

    def by_keyword(self, data, *, context):
        return self._seen(data, context)

    def named_with_default(self, data, limit=3, context="none given"):
        assert limit == 3
        return self._seen(data, context)

    def second(self, data, ctx):
        return self._seen(data, ctx)

    def second_or_none(self, data, _ctx=None):
        return self._seen(data, _ctx)

    def any_keywords(self, data, **options):
        return self._seen(data, options["context"])

    def without(self, data):
        return self._seen(data, "not taken")

    async def awaited(self, data, ctx):
        return self._seen(data, ctx)


SHAPES = [name for name in vars(Recorder) if not name.startswith("_")]


def of(recorder, shape):
    return getattr(recorder, shape)


def around(**parts):
    return Pipeline([Step("s", lambda data: data, **parts)])


class Processor:
    def __init__(self, process):
        self.process = process


class Judge:
    def __init__(self, validate):
        self.validate = validate


PLACES = {
    "prompt processor": (None, lambda f: around(processors=AgentProcessors(prompt_processors=[f]))),
    "output processor": (None, lambda f: around(processors=AgentProcessors(output_processors=[Processor(f)]))),
    "validator": (True, lambda f: around(validators=[f])),
    "validator object": (True, lambda f: around(validators=[Judge(f)])),
    "decorated validator": (True, lambda f: around(validators=[validator(f)])),
    "plugin": (PluginOutcome(success=True), lambda f: around(plugins=[Judge(f)])),
    "invariant": (True, lambda f: around(static_invariants=[f])),
    "condition": (
        "a",
        lambda f: Pipeline([ConditionalStep("c", condition_callable=f, branches={"a": Step("s", lambda data: data)})]),
    ),
    "exit condition": (
        True,
        lambda f: Pipeline([LoopStep("l", loop_body_pipeline=Step("s", lambda data: data), exit_condition_callable=f)]),
    ),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_context_arrives_by_name_or_by_place_and_none_without_one(engine, place, shape):
    answer, pipeline_with = PLACES[place]
    seen = Recorder(answer)
    ran = [engine.run(pipeline_with(of(seen, shape)), "in", context=given) for given in (Ctx(), None)]
    assert [each.error for each in ran] == [None, None]
    assert seen.given == (["not taken"] * 2 if shape == "without" else ["Ada", None])


def test_what_is_not_meant_for_the_context_does_not_receive_it():
    def shortened(text, limit=3):
        return text[:limit]

    def with_resources(data, resources=None):
        return data, resources

    def anything(*given):
        return given

    def called(function):
        return arranged(function, ("a ", CONTEXT), context=lambda: "the context", options={"resources": "pool"})()

    assert called(shortened) == "a "
    assert called(str.strip) == "a"
    assert called(str) == "a "
    assert called(with_resources) == ("a ", "pool")
    assert called(anything) == ("a ", "the context")


def test_the_context_keeps_its_place_between_other_arguments():
    def called(function):
        return arranged(
            function, ("out", CONTEXT, 2), context=lambda: "the context", options={"original_input": "in"}
        )()

    assert called(lambda output, ctx, index: (output, ctx, index)) == ("out", "the context", 2)
    assert called(lambda output, index, *, context: (output, context, index)) == ("out", "the context", 2)
    assert called(lambda output, ctx, index, original_input: original_input) == "in"


def test_a_context_that_is_not_taken_is_not_decoded():
    def decoded():
        raise AssertionError("decoded")

    assert arranged(len, ("abc", CONTEXT), context=decoded, options={})() == 3
