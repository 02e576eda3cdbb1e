"""What the real clients of providers raise over HTTP says how long to wait: those that no other test imports."""

import anthropic
import httpx
import pytest
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider

from flujo_worker.runtime.http_errors import is_outage, is_rate_refusal, requested_wait
from tests.support.openai_server import OpenAIServer, Said

pytestmark = pytest.mark.integrations

MODEL = "claude-of-the-test"


def by_anthropic(url):
    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    client.messages.create(model=MODEL, max_tokens=9, messages=[{"role": "user", "content": "hi"}])


def by_pydantic_ai(url):
    client = anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0)
    Agent(AnthropicModel(MODEL, provider=AnthropicProvider(anthropic_client=client))).run_sync("hi")


def by_httpx(url):
    httpx.post(f"{url}/v1/messages", json={}).raise_for_status()


@pytest.mark.parametrize(("status", "is_refusal"), [(429, True), (529, True), (503, False)])
@pytest.mark.parametrize("ask", [by_anthropic, by_pydantic_ai, by_httpx])
def test_an_error_says_how_long_to_wait_and_whose_business_it_is(ask, status, is_refusal):
    with (
        OpenAIServer([Said(status=status, headers=(("Retry-After", "7"),))]) as server,
        pytest.raises(Exception, match=str(status)) as raised,
    ):
        ask(server.url)
    error = raised.value
    assert requested_wait(error) == 7.0
    assert is_rate_refusal(error, by_library=ask is by_pydantic_ai) is is_refusal
    assert is_outage(error, by_library=ask is by_pydantic_ai) is not is_refusal
