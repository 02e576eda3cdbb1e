"""Official clients from npm follow runs of real workers: AG-UI's, which accepts every stream however often it joins, and Vercel's AI SDK."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.fleet import BRISK, STEPS
from tests.support.live_server import live_server

NPM = shutil.which("npm")
pytestmark = [
    pytest.mark.services,
    pytest.mark.integrations,
    pytest.mark.site(worker=BRISK, workers=2),
    pytest.mark.skipif(NPM is None, reason="npm is not installed"),
]
SOURCE = Path(__file__).with_name("npm_clients")
INSTALLED = Path(__file__).parents[2] / ".cache" / "npm_clients"
STORY = "Once upon a time there was a worker."


@pytest.fixture(scope="module")
def client():
    """The folder of the client and its script."""
    shutil.copytree(SOURCE, INSTALLED, dirs_exist_ok=True)
    if not (INSTALLED / "node_modules").exists():
        subprocess.run(
            [NPM, "ci", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=INSTALLED, check=True, timeout=200
        )
    return INSTALLED


@pytest.fixture(autouse=True)
def pipelines(monkeypatch):
    monkeypatch.syspath_prepend(STEPS)


def answer_of(client, site, script, run, path, *arguments):
    """Run a script on the stream of a run; return what it prints."""
    with live_server(site.settings) as address:
        command = ["node", script, f"{address}/runs/{run.id}/{path}", *map(str, arguments)]
        done = subprocess.run(command, cwd=client, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def joined(client, site, run, joins, stay_ms):
    """Let the client join so many times before it stays; return what it has then."""
    return answer_of(client, site, "ag_ui.mjs", run, "ag-ui", joins, stay_ms)


def said(told):
    return [(each["role"], each.get("content", "")) for each in told["messages"]]


def test_it_joins_a_run_20_times_whose_worker_is_killed(client, site):
    run = site.client.enqueue("stream_pipelines:story", "kill")
    told = joined(client, site, run, 20, 150)
    assert told["failed"] == []
    assert told["seen"].count("RUN_STARTED") > 1  # it may go away before its stream begins
    assert told["seen"][-1] == "RUN_FINISHED"
    assert said(told) == [("user", "hello"), ("assistant", STORY)]
    assert run.record().status == "succeeded"


def test_it_follows_tools_and_answers_a_question(client, site):
    told = joined(client, site, site.client.enqueue("stream_pipelines:tools", "hello"), 3, 60)
    assert told["failed"] == []
    roles = [role for role, _ in said(told)]
    assert roles == ["user", "assistant", "tool", "assistant"], told["messages"]
    [call] = told["messages"][1]["toolCalls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("look", {"at": "sky"})
    assert said(told)[-1] == ("assistant", STORY)

    told = joined(client, site, site.client.enqueue("live_pipelines:asked", "hello"), 1, 60)
    assert (told["failed"], told["questions"]) == ([], ["Keep it?"])
    assert said(told) == [("user", "hello"), ("assistant", STORY)]


def test_vercels_sdk_reads_a_run_with_a_tool_and_one_whose_model_fails_once(client, site):
    told = answer_of(client, site, "vercel.mjs", site.client.enqueue("stream_pipelines:tools", "hello"), "vercel")
    tool, text = (each for each in told["message"]["parts"] if each["type"] in ("tool-look", "text"))
    assert (told["failed"], tool["state"], tool["input"], text["text"]) == (
        [],
        "output-available",
        {"at": "sky"},
        STORY,
    )

    told = answer_of(client, site, "vercel.mjs", site.client.enqueue("stream_pipelines:story", "down"), "vercel")
    parts = told["message"]["parts"]
    assert (told["failed"], parts[-1]["data"]["output"]) == ([], STORY)
    assert [each["type"] for each in parts if each["type"] != "data-flujo-log"] == [
        "step-start", "text", "data-flujo-withdrawn", "text", "data-flujo-step_end",
    ]  # fmt: skip
    assert [each["text"] for each in parts if each["type"] == "text"][-1] == STORY
