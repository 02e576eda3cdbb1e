"""The example of a chat in Chromium: tokens as they come, a server that is replaced in the middle, and a question that is answered."""

import sys
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from serving import serving

from tests.support.fleet import BRISK, Site, wait_until
from tests.support.openai_server import OpenAIServer, Said

pytestmark = [pytest.mark.services, pytest.mark.acceptance, pytest.mark.browser]
CHAT = Path(__file__).parents[2] / "examples" / "chat"
WORDS = " ".join(f"word-{n}" for n in range(40))
LOOKS = {"light": {}, "dark": {"is_dark": True}, "phone": {"width": 360}, "dark phone": {"is_dark": True, "width": 360}}


@pytest.fixture(scope="module")
def chat(services, tmp_path_factory):
    """A site whose workers have the assistant, and a model that says a word every 0.1 s to who asks slowly."""
    with (
        OpenAIServer(lambda asked: Said(WORDS, pause_s=0.1 if b"slowly" in asked.raw else 0.001)) as model,
        Site(services, tmp_path_factory.mktemp("chat"), worker=BRISK) as site,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("OPENAI_BASE_URL", model.url)
        patch.setenv("OPENAI_API_KEY", "none")
        site.workers(code=CHAT)
        yield site


def served(chat, port=0):
    code = f"import sys; sys.path.insert(0, {str(CHAT)!r}); from serving import serve; from server import app; serve(app, port={port})"
    return serving(chat.settings, sys.executable, "-c", code)


def ask(browser, prompt):
    browser.open("/")
    browser.tab_to("input")
    browser.press(prompt, "\ue007")


def test_tokens_come_as_they_are_said_and_once_though_the_server_is_replaced(chat, open_browser):
    with served(chat) as address:
        browser = open_browser(address)
        ask(browser, "Tell me, slowly")
        seen = wait_until(lambda: browser.text(".it"), 60, what=lambda: browser.text("body"))
        assert WORDS.startswith(seen)
        assert len(seen) < len(WORDS)
        wait_until(lambda: len(browser.text(".it")) > len(seen), 60)
    with served(chat, urlsplit(address).port):
        browser.wait_for(WORDS, ".it")
        assert browser.text(".it") == WORDS
        browser.wait_for("Keep this answer?", "#state")
        browser.tab_to("button", "Keep")
        browser.press("\ue007")
        browser.wait_for("Kept.", "#state")
        assert browser.text(".it") == WORDS


def test_an_answer_to_no_run_or_no_question_is_refused(chat):
    with served(chat) as address:
        begun = httpx.post(f"{address}/chats", json={"prompt": "Tell me, slowly"}).json()["run"]
        answers = [httpx.post(f"{address}/chats/{run}/answer", json={"keep": True}) for run in ("run_none", begun)]
    assert [each.status_code for each in answers] == [404, 409]
    assert "run_none" in answers[0].json()["error"]


def test_everybody_can_read_the_page(chat, open_browser, tmp_path):
    with served(chat) as address:
        for name, look in LOOKS.items():
            browser = open_browser(address, **look)
            ask(browser, "How are you?")
            browser.wait_for("Keep this answer?", "#state")
            (tmp_path / f"{name}.png").write_bytes(browser.picture(700))
            assert (browser.overflow(), browser.unlawful(), browser.troubles()) == (0, [], []), name
