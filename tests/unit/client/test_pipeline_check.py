"""What is refused before anything is sent: all findings at once."""

from unittest.mock import AsyncMock, MagicMock

import pytest
from celery import Celery
from pydantic import BaseModel

from flujo_client.errors import MissingAgentError, PipelineError, StepInvocationError
from flujo_client.pipeline.check import check
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.step import Step, step
from flujo_client.plan.identity import identify
from tests.support.builders import echo, pipeline_of


class Book(BaseModel):
    total: int = 0


class OurMock(MagicMock):
    pass


def findings(*steps, allowed=("*",), has_context=True, **rest):
    with pytest.raises(PipelineError) as caught:
        check(Pipeline(list(steps), **rest), allowed=allowed, has_context=has_context)
    return caught.value.findings


def test_what_can_run_is_let_through():
    check(pipeline_of("a", "b c", "ü", queue="gpu.large:1"), allowed=())
    check(pipeline_of(agent="tests.support.builders:echo"), allowed=("tests.support.builders",))


def test_everything_is_found_at_once():
    """No one mends one thing only to meet the next."""
    found = findings(
        Step("a/b", echo), Step("c"), Step("c", 3), Step("d", echo, validators=[1], plugins=[2], sink_to="no path")
    )
    said = "\n".join(found)
    for part in (
        "'a/b'",
        "2 steps have this name",
        "no agent",
        "a int, is not callable",
        "validator int",
        "plugin int",
        "no path",
    ):
        assert part in said
    assert len(found) == 7


def test_the_error_lists_its_findings_and_names_the_pipeline():
    with pytest.raises(PipelineError, match=r"(?s)orders cannot be enqueued:\n  - step ''.*\n  - step 'x#1'"):
        check(Pipeline([Step("", echo), Step("x#1", echo)], name="orders"), allowed=())


@pytest.mark.parametrize("name", ["", " a", "a ", "a/b", "a:b", "a#b", "a\nb", "a\x00", "x" * 121, "\ud800"])
def test_a_name_is_part_of_an_address(name):
    assert "a name must have 1 to 120 characters" in findings(Step(name, echo))[0]


def test_a_pipeline_has_steps():
    assert findings() == ("it has no steps",)


def test_only_missing_agents_have_an_error_of_their_own():
    with pytest.raises(MissingAgentError, match="step 'a': it has no agent; step 'b': it has no agent"):
        check(Pipeline([Step("a"), Step("b")]), allowed=())


@Celery("shop", set_as_current=False).task(name="shop.charge")
def charge(order):
    return order


def test_a_celery_task_is_known_by_its_own_module():
    """Until its app is finalized it is a proxy, which says that it is of Celery's module."""
    assert identify(charge) == {"callable": f"{__name__}:charge"}


@pytest.mark.parametrize("mock", [MagicMock(), AsyncMock(), OurMock()])
def test_a_mock_is_no_agent(mock):
    """C-21: a worker could not rebuild it."""
    assert "is a mock" in findings(Step("a", mock))[0]


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        (3, "a int, is not callable and has no run method"),
        (Step("b", echo), "is the step 'b'; give that step's agent"),
        (Book, "is the class Book; give an instance"),
        ("no reference", "is not a reference to a agent"),
        ("tests.support.builders:nothing", "has no 'nothing'"),
        ("no_such_module:x", "no module named 'no_such_module'"),
        ("tests.support.builders:BACKOFF", "a Backoff, is not callable"),
    ],
)
def test_what_is_no_agent(agent, said):
    assert said in findings(Step("a", agent))[0]


def test_an_agent_outside_the_allowed_imports_is_not_imported():
    """M-014."""
    assert "outside the allowed imports" in findings(Step("a", "tests.support.builders:echo"), allowed=("acme",))[0]


@pytest.mark.parametrize("options", [{"updates_context": True}, {"sink_to": "total"}])
def test_a_step_that_needs_a_context_says_so(options):
    [found] = findings(Step("a", echo, **options), has_context=False)
    assert "needs a context" in found


def test_sink_to_is_a_field_of_the_model():
    [found] = findings(Step("a", echo, sink_to="totel.x"), context_model=Book)
    assert "sink_to 'totel.x' is not a field of Book" in found


@pytest.mark.parametrize("queue", ["", "a b", "a\x00b", "x" * 121])
def test_a_queue_has_a_name_that_brokers_and_postgres_take(queue):
    """M-428."""
    assert "is not the name of a queue" in findings(Step("a", echo, queue=queue))[0]


def test_a_step_is_no_function():
    with pytest.raises(StepInvocationError, match="step 'a' was called like a function"):
        Step("a", echo)("data")


def test_steps_and_pipelines_join_in_order():
    a, b, c, d = (Step(name, echo) for name in "abcd")
    tail = Pipeline([c, d], name="tail")
    for joined in (a >> b >> tail, a >> (b >> tail), Pipeline([a, b]) >> tail):
        assert list(joined.steps) == [a, b, c, d]


def test_a_decorated_function_is_a_step():
    @step(name="named", max_retries=4, timeout_s=2.0, sink_to="x")
    def work(data):
        return data

    assert (work.name, work.config.max_retries, work.config.timeout_s, work.sink_to) == ("named", 4, 2.0, "x")
    assert step(echo).name == "echo"
