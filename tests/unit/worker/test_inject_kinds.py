"""Which options an agent is given: every kind of callable (FSD-11, M-020 to M-038)."""

import functools
from typing import Any

import pytest
from pydantic_ai import Agent

from flujo_client.errors import ConfigurationError
from flujo_worker.runtime.call_args import accepted_kwargs, accepts_param

CONTEXT = object()
OPTIONS = {"context": CONTEXT, "resources": "pool", "temperature": 0.2}


class Plain:
    def run(self, data):
        return data


class Aware:
    async def run(self, data, *, context):
        return data, context


class Anything:
    def run(self, data, **options):
        return data, options


class Called:
    def __call__(self, data, context=None):
        return data, context


class Unhashable(Called):
    __hash__ = None  # type: ignore[assignment]


class StaticCall:
    __call__ = staticmethod(lambda data, context: (data, context))


class ClassRun:
    @classmethod
    def run(cls, data, context):
        return data, context


class StaticRun:
    @staticmethod
    def run(data, *, temperature):
        return data, temperature


class Slotted:
    __slots__ = ()

    def __call__(self, data, *, resources):
        return data, resources


async def positional_only(data, context, /):
    return data, context


def positional_only_and_rest(data, context=None, /, **rest):
    return data, rest


def keywords(data, *args, context, temperature=1.0):
    return data, args, context, temperature


def takes_the_data_as_context(context):
    return context


def takes_the_data_as_context_and_rest(context, **rest):
    return context, rest


def passing(func):
    @functools.wraps(func)
    def wrapper(*args, **kwargs):
        return func(*args, **kwargs)

    return wrapper


def narrow(func):
    @functools.wraps(func)
    def wrapper(data):
        return func(data, context=CONTEXT)

    return wrapper


class Decorated:
    @passing
    def run(self, data, context):
        return data, context


class Wrapper:
    """A factory's wrapper: takes anything itself and says whom it wraps."""

    def __init__(self, target: Any) -> None:
        self.__flujo_target__ = target

    def run(self, data, **options):
        return self.__flujo_target__.run(data, **options)


def give(data, context, temperature):
    return data, context, temperature


CASES = [
    (Plain(), set()),
    (Aware(), {"context"}),
    (Anything(), {"context", "resources", "temperature"}),
    (Called(), {"context"}),
    (Unhashable(), {"context"}),
    (StaticCall(), {"context"}),
    (Slotted(), {"resources"}),
    (ClassRun(), {"context"}),
    (ClassRun, {"context"}),
    (StaticRun(), {"temperature"}),
    (Aware().run, {"context"}),
    (keywords, {"context", "temperature"}),
    (positional_only, set()),
    (positional_only_and_rest, {"context", "resources", "temperature"}),
    (takes_the_data_as_context, set()),
    (takes_the_data_as_context_and_rest, {"resources", "temperature"}),
    (functools.partial(give, temperature=0.9), {"context"}),
    (functools.partial(give, "first"), {"temperature"}),
    (functools.partial(Anything().run, temperature=0.9), {"context", "resources"}),
    (functools.partial(functools.partial(give, temperature=1), context=2), set()),
    (passing(give), {"context", "temperature"}),
    (passing(passing(Plain().run)), set()),
    (narrow(keywords), set()),
    (Decorated(), {"context"}),
    (functools.lru_cache(keywords), {"context", "temperature"}),
    (staticmethod(keywords), {"context", "temperature"}),
    (Wrapper(Plain()), set()),
    (Wrapper(Wrapper(Aware())), {"context"}),
    (print, set()),
    (dict, set()),
    ([].append, set()),
    (object(), set()),
]


@pytest.mark.parametrize(("agent", "accepted"), CASES, ids=lambda case: getattr(case, "__qualname__", None))
def test_an_agent_is_given_what_it_accepts_and_nothing_else(agent, accepted):
    """M-021, M-022, M-024: cold and warm give the same answer."""
    assert set(accepted_kwargs(agent, OPTIONS)) == accepted
    assert set(accepted_kwargs(agent, OPTIONS)) == accepted


@pytest.mark.parametrize("agent", [Plain(), Aware(), Anything(), Called(), ClassRun(), Decorated(), passing(keywords)])
def test_what_is_chosen_can_be_passed(agent):
    """M-022: the call never fails with a TypeError."""
    result = getattr(agent, "run", agent)("data", **accepted_kwargs(agent, OPTIONS))
    close = getattr(result, "close", None)
    if close:
        close()


def test_the_values_are_handed_on_as_they_are():
    assert accepted_kwargs(Aware(), OPTIONS)["context"] is CONTEXT


def test_without_a_context_none_is_passed():
    """M-023: a keyword-accepting agent sees no `context` key."""
    assert accepted_kwargs(Anything(), {"context": None, "resources": "pool"}) == {"resources": "pool"}


def test_falsy_options_are_passed():
    assert accepted_kwargs(Anything(), {"temperature": 0.0}) == {"temperature": 0.0}


def test_a_pydantic_ai_agent_never_receives_the_context():
    """M-031: wrapped or not."""
    agent = Agent("test")
    assert not accepts_param(agent.run, "context")
    assert accepted_kwargs(Wrapper(agent), OPTIONS) == {}
    assert accepts_param(agent.run, "model_settings")


def test_a_wrapper_that_wraps_itself_is_refused():
    wrapper = Wrapper(None)
    wrapper.__flujo_target__ = wrapper
    with pytest.raises(ConfigurationError, match="does not end"):
        accepted_kwargs(wrapper, OPTIONS)


@pytest.mark.parametrize(
    ("func", "expected"),
    [
        (takes_the_data_as_context, True),
        (Aware.run, True),
        (Anything().run, True),
        (positional_only, False),
        (functools.partial(give, context=1), False),
        (print, False),
        (classmethod(give), False),
        (None, False),
    ],
)
def test_accepts_param_answers_for_any_callable(func, expected):
    """M-029: named or arbitrary keywords; False when the signature cannot be determined."""
    assert accepts_param(func, "context") is expected


def test_a_chain_of_wrapped_without_end_accepts_nothing():
    def loop(data, **rest):
        return data, rest

    loop.__wrapped__ = loop  # type: ignore[attr-defined]
    assert not accepts_param(loop, "context")
