"""What HTTP errors say: how long to wait, and what is left of a limit, in the exceptions of each client (SYS-19)."""

from datetime import UTC, datetime
from email.message import Message
from urllib.error import HTTPError

import httpx2
import openai
import pytest
import requests
from pydantic_ai import exceptions as ai

from flujo_client import Pipeline, Step, StepConfig
from flujo_client.errors import AgentError
from flujo_worker import LocalEngine, make_agent_async
from flujo_worker.domain.rate import Left, RateBucket, RateRules, observe, reserve
from flujo_worker.runtime.http_errors import asked_wait, is_outage, is_rate_refusal, left_of, requested_wait, reset_wait
from tests.support.openai_server import OpenAIServer, Said

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "left"),
    [
        ({"x-ratelimit-remaining-requests": "59", "x-ratelimit-remaining-tokens": "149984"}, Left(59, 149984)),
        ({"anthropic-ratelimit-requests-remaining": "0", "anthropic-ratelimit-tokens-remaining": "7"}, Left(0, 7)),
        ({"x-ratelimit-remaining-requests": "many", "x-ratelimit-remaining-tokens": "-1"}, Left()),
        ({"x-ratelimit-remaining-tokens": "9" * 4000}, Left()),
        ({}, Left()),
    ],
)
def test_what_is_left(headers, left):
    assert left_of(headers) == left


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1m3s"}, 60.0),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "120ms"}, 0.12),
        ({"x-ratelimit-remaining-requests": "3", "x-ratelimit-reset-requests": "1s"}, 0.0),
        (
            {
                "anthropic-ratelimit-tokens-remaining": "0",
                "anthropic-ratelimit-tokens-reset": "2026-11-23T12:00:20Z",
            },
            20.0,
        ),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "soon"}, 0.0),
        ({"x-ratelimit-remaining-requests": "0"}, 0.0),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(int(NOW.timestamp()) + 7)}, 7.0),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(1000 * int(NOW.timestamp()) + 1500)}, 1.5),
        ({"ratelimit-remaining": "0", "ratelimit-reset": "9"}, 9.0),
        ({"ratelimit": "limit=100, remaining=0, reset=11"}, 11.0),
        ({"ratelimit": '"burst";r=40;t=3, "day";r=0;t=12'}, 12.0),
        ({"ratelimit": '"burst";r=40;t=3'}, 0.0),
        ({"x-ratelimit-remaining-requests-day": "0", "x-ratelimit-reset-requests-day": "33011.38"}, 60.0),
    ],
)
def test_how_long_until_a_limit_is_whole_again(headers, wait_s):
    assert reset_wait(headers, NOW) == pytest.approx(wait_s)


def test_others_who_use_the_same_limit_are_seen():
    """The bucket holds no more than the provider says is left, and as much as before if it says that more is left."""
    rules = RateRules(requests=600, tokens=60_000, slow_start_s=0.0)
    bucket, _ = reserve(RateBucket(), rules, 1000.0, 10)
    later = 1100.0

    def wait_s(left):
        _, answer = reserve(observe(bucket, rules, later, left), rules, later, 3000)
        return answer.wait_s

    assert (wait_s(Left()), wait_s(Left(500, 50_000))) == (0.0, 0.0)
    assert wait_s(Left(0, 50_000)) == pytest.approx(rules.cost(1, 600))
    assert wait_s(Left(500, 0)) == pytest.approx(rules.full_s)


WAITS = [
    ("7", 7.0),
    ("0.25", 0.25),
    ("1m5s", 65.0),
    ("Mon, 23 Nov 2026 12:00:30 GMT", 30.0),
    ("Monday, 23-Nov-26 12:00:30 GMT", 30.0),
    ("Mon Nov 23 12:00:30 2026", 30.0),
    ("Mon, 23 Nov 2026 11:00:00 GMT", 0.0),
    ("tomorrow", None),
    ("-1", None),
    ("inf", None),
]


def httpx_error(status, headers, client=httpx2):
    request = client.Request("GET", "http://here/")
    return client.HTTPStatusError(
        "no", request=request, response=client.Response(status, headers=headers, request=request)
    )


def openai_error(status, headers):
    return openai.APIStatusError("no", response=httpx_error(status, headers).response, body=None)


def requests_error(status, headers):
    response = requests.Response()
    response.status_code, response.headers = status, requests.structures.CaseInsensitiveDict(headers)
    return requests.HTTPError("no", response=response)


def urllib_error(status, headers):
    message = Message()
    for name, value in headers.items():
        message[name] = value
    return HTTPError("http://here/", status, "no", message, None)


class ClientResponseError(Exception):
    """As aiohttp raises it."""

    def __init__(self, status, headers):
        super().__init__(status)
        self.status, self.headers = status, headers


CLIENTS = {
    "pydantic-ai": lambda status, headers: ai.ModelHTTPError(status, "m", headers=headers),
    "openai": openai_error,
    "httpx": httpx_error,
    "requests": requests_error,
    "urllib": urllib_error,
    "aiohttp": ClientResponseError,
}


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(("said", "wait"), WAITS)
def test_each_form_of_retry_after_is_read_from_each_clients_error(client, said, wait):
    error = CLIENTS[client](429, {"Retry-After": said, "Date": "Mon, 23 Nov 2026 12:00:00 GMT"})
    assert asked_wait(error, datetime(2030, 1, 1, tzinfo=UTC)) == (wait if wait is None else pytest.approx(wait))


@pytest.mark.parametrize("client", CLIENTS)
def test_a_limit_that_is_used_up_says_how_long_to_wait_in_each_clients_error(client):
    error = CLIENTS[client](429, {"X-RateLimit-Remaining-Tokens": "0", "X-RateLimit-Reset-Tokens": "6s"})
    assert requested_wait(error) == 6.0
    assert is_rate_refusal(error, by_library=False)
    assert not is_outage(error, by_library=False)


def test_a_wait_is_read_behind_what_the_code_raised_itself():
    error = AgentError("no weather")
    error.__cause__ = ValueError("cannot read it")
    error.__cause__.__cause__ = requests_error(503, {"Retry-After": "4"})
    assert requested_wait(error) == 4.0


@pytest.mark.parametrize("place", ["plain step", "tool"])
def test_the_next_attempt_waits_as_a_service_in_the_users_own_code_asks(place):
    """In a plain step's own client and in a tool, over real HTTP."""
    with OpenAIServer([Said(status=429, headers=(("Retry-After", "3"),))]) as service, LocalEngine() as engine:

        def fetch(_):
            requests.post(f"{service.url}/chat/completions", json={}, timeout=5).raise_for_status()

        with OpenAIServer([Said(arguments='{"_": "x"}')]) as provider:
            agent = fetch if place == "plain step" else make_agent_async(model_at(provider), tools=[fetch])
            run = engine.enqueue(Pipeline([Step("ask", agent, config=StepConfig(max_retries=0))]), "go")
            engine.drain()
            [attempt] = engine.history(run)
    assert (attempt.fault.type_name, attempt.fault.retry_after_s, attempt.fault.guidance) == ("HTTPError", 3.0, None)


def model_at(server):
    from pydantic_ai.models.openai import OpenAIChatModel

    return OpenAIChatModel("gpt-4o-mini", provider=server.provider())
