"""Exceptions become error data: category, root cause, feedback, whether to try again (M-025, M-026, M-461, M-462)."""

from __future__ import annotations

import asyncio

import orjson
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai import exceptions as ai

from flujo_client.contract.outcome import Fault
from flujo_client.errors import (
    AgentError,
    AnswerCut,
    MissingAgentError,
    NonRetryableError,
    PipelineAbortSignal,
    PluginError,
    SettingsError,
    TemplateResolutionError,
    UnreadableResponse,
    ValidationError,
)
from flujo_client.redact import redact
from flujo_worker.concurrency.event_loop import within
from flujo_worker.runtime.fault_text import MAX_MESSAGE_BYTES
from flujo_worker.runtime.faults import ErrorCategory, ErrorHandler, describe, root_cause
from flujo_worker.runtime.http_errors import is_outage, is_rate_refusal


def throw(error: Exception, *, cause: Exception | None = None, context: Exception | None = None) -> None:
    if cause is not None:
        raise error from cause
    try:
        if context is not None:
            raise context
    finally:
        raise error


def raised(error: Exception, **behind: Exception) -> Exception:
    """Raise it for real, from a `cause` or while a `context` is handled, and give it back."""
    with pytest.raises(type(error)) as caught:
        throw(error, **behind)
    return caught.value


def hide(error: Exception, hidden: Exception) -> None:
    try:
        raise hidden
    except type(hidden):
        raise error from None


def of_agent(error: BaseException, **rest) -> Fault:
    return describe(error, during="agent", **rest)


def with_classes(cases):
    """Return the cases of a pydantic-ai that has a class for each kind of refusal: since 2.59."""
    return cases() if hasattr(ai, "ModelConnectionError") else []


def http(status: int, **rest) -> ai.ModelHTTPError:
    return ai.ModelHTTPError(status, "some-model", **rest)


@pytest.mark.parametrize(
    ("error", "category"),
    [
        (ValidationError("no"), ErrorCategory.VALIDATION),
        (PluginError("no"), ErrorCategory.PLUGIN),
        (AgentError("no"), ErrorCategory.AGENT),
        (PipelineAbortSignal("stop"), ErrorCategory.CONTROL_FLOW),
        (MissingAgentError("none"), ErrorCategory.CONFIGURATION),
        (SettingsError("none"), ErrorCategory.CONFIGURATION),
        (ai.UserError("wrong"), ErrorCategory.CONFIGURATION),
        (ai.UsageLimitExceeded("much"), ErrorCategory.LIMIT),
        (ai.ModelRetry("again"), ErrorCategory.AGENT),
        (ai.UnexpectedModelBehavior("odd"), ErrorCategory.AGENT),
        (http(500), ErrorCategory.AGENT),
        (OSError("disk"), ErrorCategory.SYSTEM),
        (ValueError("what"), ErrorCategory.SYSTEM),
    ],
)
def test_the_class_tells_the_category(error, category):
    """M-461, M-462: the mapping table; unknown is SYSTEM."""
    assert ErrorHandler().categorize_error(error) is category


@pytest.mark.parametrize(
    ("during", "category", "retryable"),
    [
        ("agent", ErrorCategory.AGENT, True),
        ("plugin", ErrorCategory.PLUGIN, False),
        ("validator", ErrorCategory.VALIDATION, False),
        ("system", ErrorCategory.SYSTEM, True),
    ],
)
def test_the_place_tells_the_category_of_what_no_class_tells(during, category, retryable):
    """C-01: only an agent's failure calls the agent again."""
    info = describe(ValueError("x"), during=during)
    assert (info.category, info.retryable) == (category, retryable)


@pytest.mark.parametrize(
    ("error", "category"),
    [
        (PipelineAbortSignal("stop"), ErrorCategory.CONTROL_FLOW),
        (MissingAgentError("none"), ErrorCategory.CONFIGURATION),
        (ai.UserError("wrong"), ErrorCategory.CONFIGURATION),
        (ai.UsageLimitExceeded("much"), ErrorCategory.LIMIT),
    ],
)
@pytest.mark.parametrize("during", ["agent", "plugin", "validator", "system"])
def test_some_classes_mean_the_same_everywhere_and_through_wrappers(error, category, during):
    """M-441, C-23: a wrapper's own error does not swallow control flow."""
    for shape in (error, raised(AgentError("wrapped"), cause=error), ExceptionGroup("g", [ValueError(), error])):
        info = describe(shape, during=during)
        assert (info.category, info.type_name, info.retryable) == (category, type(error).__name__, False)


def test_an_error_handled_on_the_way_does_not_give_the_category():
    info = of_agent(raised(ValueError("after"), context=ai.UsageLimitExceeded("before")))
    assert info.category == ErrorCategory.AGENT


def test_output_that_fits_no_schema_is_the_agents_and_may_be_tried_again():
    """C-02."""
    with pytest.raises(pydantic.ValidationError) as caught:
        pydantic.TypeAdapter(int).validate_python("many")
    info = of_agent(caught.value)
    assert (info.category, info.retryable) == (ErrorCategory.AGENT, True)


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        *[(http(status), False) for status in (400, 401, 403, 404, 422)],
        *[(http(status), True) for status in (408, 409, 429, 500, 502, 503, 529)],
        *with_classes(
            lambda: [
                (ai.ModelHTTPError.for_category(ai.ModelQuotaExceededError, status_code=429, model_name="m"), False),
                (ai.ModelHTTPError.for_category(ai.ModelUnavailableError, status_code=403, model_name="m"), True),
                (ai.ModelAuthenticationError("m", "no key"), False),
                (ai.ModelConnectionError("m", "refused"), True),
                (ai.ModelRequestTimeout("m", 3.0), True),
                (ai.RunTimedOut("late"), True),
            ]
        ),
        (ai.RunCancelled("stopped"), False),
        (ai.UnexpectedModelBehavior("odd"), True),
        (NonRetryableError("never"), False),
        (TemplateResolutionError("'x' is not there", missing="x"), False),
        (AgentError("again"), True),
        (ExceptionGroup("all", [http(401), http(404)]), False),
        (ExceptionGroup("all", [http(401), http(503)]), True),
    ],
)
def test_whether_trying_again_may_help(error, retryable):
    """M-461: also behind a wrapper."""
    assert of_agent(error).retryable is retryable
    assert of_agent(raised(AgentError("wrapped"), cause=error)).retryable is retryable


def test_an_agent_may_forbid_another_try_whatever_it_met():
    assert not of_agent(raised(NonRetryableError("stop"), cause=http(503))).retryable


class Response:
    def __init__(self, status_code, **headers):
        self.status_code = status_code
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class ClientError(Exception):
    """What an HTTP client raises: the response is on it."""

    def __init__(self, response):
        super().__init__("refused")
        self.response = response


@pytest.mark.parametrize(
    ("error", "wait"),
    [
        (http(429, headers={"Retry-After": "7"}), 7.0),
        (ClientError(Response(429, retry_after="3.5")), 3.5),
        (ClientError(Response(429, retry_after="tomorrow")), None),
        (ClientError(Response(429, retry_after="-1")), None),
        (ClientError(Response(429)), None),
        (ValueError("x"), None),
    ],
)
def test_the_provider_says_how_long_to_wait(error, wait):
    assert of_agent(error).retry_after_s == wait


def test_the_status_of_any_http_client_counts():
    assert not of_agent(ClientError(Response(404))).retryable


def test_feedback_names_type_and_message():
    """M-025, FR-36: the seed's words."""
    info = of_agent(ValueError("Internal error"))
    assert info.feedback == "Agent execution failed with ValueError: Internal error"
    assert (info.type_name, info.module, info.message) == ("ValueError", "builtins", "Internal error")


@pytest.mark.parametrize("chain", ["cause", "context"])
def test_feedback_names_the_root_cause_behind_wrappers(chain):
    """M-026, C-26: retries and wrapper layers do not replace it."""
    inner = raised(AgentError("attempt 1"), **{chain: ValueError("Internal error")})
    info = of_agent(raised(AgentError("gave up"), **{chain: inner}))
    assert info.feedback.startswith("Agent execution failed with ValueError: Internal error")
    assert info.feedback.endswith("(reported as AgentError: gave up)")


def test_raise_from_none_hides_what_was_before():
    """C-26."""
    with pytest.raises(ValueError, match="shown") as caught:
        hide(ValueError("shown"), KeyError("hidden"))
    assert root_cause(caught.value) is caught.value


def test_a_group_of_one_stands_for_its_member():
    """C-26."""
    member = ValueError("inside")
    assert root_cause(ExceptionGroup("g", [ExceptionGroup("h", [member])])) is member
    assert of_agent(ExceptionGroup("g", [member])).feedback == "Agent execution failed with ValueError: inside"


def test_a_group_of_many_tells_its_members():
    info = of_agent(ExceptionGroup("two", [ValueError("a"), KeyError("b")]))
    assert "ValueError: a; KeyError: 'b'" in info.feedback


def test_cycles_end():
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert root_cause(one) is two
    group = ExceptionGroup("g", [one, ValueError("three")])
    two.__cause__ = group
    assert of_agent(group).retryable


def test_a_timeout_names_the_limit():
    """M-026: an agent's timeout is the agent's failure, and the cancellation behind it is not its cause."""

    async def late():
        async with within(0, limit_s=60):
            await asyncio.sleep(5)

    with pytest.raises(TimeoutError) as caught:
        asyncio.run(late())
    info = of_agent(caught.value)
    assert (info.category, info.retryable) == (ErrorCategory.AGENT, True)
    assert info.feedback == "Agent execution failed with TimeoutError: no answer within 60 s"


def test_our_own_errors_keep_code_and_suggestion():
    """§2.10: code and suggestion survive; feedback is the message alone."""
    info = of_agent(AgentError("no", suggestion="ask again", code="MINE"))
    assert (info.code, info.suggestion, info.message) == ("MINE", "ask again", "no")
    assert of_agent(ValueError("x")).code == ""


def test_an_error_that_cannot_be_printed_is_described():
    class Broken(Exception):
        def __str__(self):
            raise RuntimeError

    assert of_agent(Broken()).type_name == "Broken"


@pytest.mark.parametrize(
    ("secret", "text"),
    [
        ("sk-proj-abcdefgh12345678", "key sk-proj-abcdefgh12345678 refused"),
        ("abcdef.ghijkl-mno", "header Authorization: Bearer abcdef.ghijkl-mno"),
        ("dXNlcjpwYXNz", "authorization: Basic dXNlcjpwYXNz"),
        ("p@ss/w:rd", "cannot reach postgresql://app:p@ss/w:rd@db/app"),
        ("hunter2", "connection failed: host=db password=hunter2 user=app"),
        ("hunter2", "{'api_key': 'hunter2', 'model': 'm'}"),
        ("hunter2", "AWS_SECRET_ACCESS_KEY=hunter2 is not known"),
        ("hunter2", "refresh_token: hunter2"),
        ("horse battery", 'password="correct horse battery"'),
        ("hunter2", 'password="hunter2'),
    ],
)
def test_secrets_are_redacted_everywhere(secret, text):
    info = of_agent(raised(AgentError(text), cause=ValueError(text)))
    assert secret not in str(info)
    assert "***" in info.message
    assert redact(redact(text)) == redact(text)


@given(st.text(max_size=50), st.integers(1, 2000))
def test_messages_are_bounded_and_travel_as_json(text, times):
    info = of_agent(raised(AgentError(text * times), cause=ValueError(text * times)))
    assert max(len(field.encode()) for field in (info.message, info.feedback)) <= MAX_MESSAGE_BYTES
    assert Fault.from_tree(orjson.loads(orjson.dumps(info.to_tree()))) == info


def test_a_lone_surrogate_does_not_stop_the_journey():
    assert orjson.dumps(of_agent(ValueError("\ud800")).to_tree())


def test_the_digest_names_the_place_not_the_message():
    def fail(text):
        raise ValueError(text)

    def caught(text):
        with pytest.raises(ValueError) as info:
            fail(text)
        return of_agent(info.value).traceback_digest

    first, second = (caught(text) for text in ("a", "b"))
    assert first == second
    assert first != of_agent(raised(ValueError("a"))).traceback_digest


@pytest.mark.parametrize(
    ("error", "context", "action"),
    [
        (ValueError("x"), "agent", "retry"),
        (http(401), "agent", "fail"),
        (ValueError("x"), "plugin", "fail"),
        (ValueError("x"), "validator", "fail"),
        (OSError("x"), "system", "wait"),
        (NonRetryableError("x"), "system", "fail"),
        (MissingAgentError("x"), "agent", "fail"),
        (PipelineAbortSignal("x"), "agent", "raise"),
        (ai.UsageLimitExceeded("x"), "agent", "raise"),
    ],
)
def test_the_response_follows_the_category(error, context, action):
    """M-462, M-287, U-17: the strategy of each category."""
    response = ErrorHandler().handle_error(error, context)
    assert response.action == action
    assert response.category == describe(error, during=context).category


class Refused(Exception):
    """As HTTP clients raise it: with the response."""

    def __init__(self, status):
        super().__init__(status)
        self.response = type("Response", (), {"status_code": status})()


GROUP = ai.FallbackExceptionGroup("all failed", [http(401), http(503)])


@pytest.mark.parametrize(
    ("error", "by_library", "of_an_agent_of_yours"),
    [
        (http(500), True, True),
        (http(529), False, False),
        (http(429), False, False),
        (http(404), False, False),
        *with_classes(
            lambda: [
                (ai.ModelOverloadedError("m", "busy"), True, True),
                (ai.ModelTimeoutError("m", "late"), True, True),
                (ai.ModelQuotaExceededError("m", "used up"), False, False),
                (ai.ModelAuthenticationError("m", "who are you"), False, False),
            ]
        ),
        (ai.UnexpectedModelBehavior("nonsense"), False, False),
        (GROUP, True, True),
        (Refused(503), False, True),
        (Refused(403), False, False),
        (type("ConnectError", (type("TransportError", (Exception,), {}),), {})("refused"), False, True),
        (ConnectionResetError("gone"), False, True),
        (TimeoutError(), False, True),
        (AgentError("no"), False, False),
        (UnreadableResponse("a web page"), True, True),
        (AnswerCut("cut"), False, False),
    ],
    ids=lambda given: None if isinstance(given, bool) else f"{type(given).__name__} {given}"[:30],
)
def test_an_outage_is_the_providers_failure(error, by_library, of_an_agent_of_yours):
    """M-463: through pydantic-ai only its own errors tell of the provider; any other is a tool's."""
    assert is_outage(error, by_library=True) is by_library
    assert is_outage(error, by_library=False) is of_an_agent_of_yours


@pytest.mark.parametrize(
    ("error", "by_library", "of_an_agent_of_yours"),
    [
        (http(429), True, True),
        (http(529), True, True),
        *with_classes(
            lambda: [
                (ai.ModelRateLimitError("m", "slow down"), True, True),
                (
                    ai.ModelHTTPError.for_category(ai.ModelQuotaExceededError, status_code=429, model_name="m"),
                    False,
                    False,
                ),
            ]
        ),
        (http(503), False, False),
        (Refused(429), False, True),
        (TimeoutError(), False, False),
    ],
    ids=lambda given: None if isinstance(given, bool) else f"{type(given).__name__} {given}"[:30],
)
def test_a_rate_refusal_is_no_outage(error, by_library, of_an_agent_of_yours):
    """C-48: the rate limiter slows down; what a tool raised is not the model's refusal."""
    assert is_rate_refusal(error, by_library=True) is by_library
    assert is_rate_refusal(error, by_library=False) is of_an_agent_of_yours


def test_an_outage_may_be_wrapped():
    """By who says so: a cause counts, what was only handled on the way does not."""
    assert is_outage(raised(AgentError("no answer"), cause=http(503)), by_library=True)
    assert not is_outage(raised(AgentError("a bug"), context=http(503)), by_library=True)
