"""Streams of real workers as readers see them: the handles, `Flujo.stream_async`, `flujo run --stream` and `flujo lens watch`."""

import asyncio
import os
import pty
import re
import subprocess
import sys

import pytest

from flujo_client import Chunk, Flujo, Success
from tests.acceptance import stream_pipelines as pipelines
from tests.acceptance.stream_pipelines import WORDS
from tests.support.fleet import BRISK, PATIENCE_S, STEPS, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.site(worker=BRISK)]
STORY = "".join(WORDS)
NOT_WRITTEN = "attempts are not written"


def enqueue(site, name, value="", **options):
    return site.client.enqueue(f"stream_pipelines:{name}", value, **options)


def started(site, *arguments):
    environment = {**os.environ, **site.settings.as_environment(), "PYTHONPATH": str(STEPS), "TERM": "xterm"}
    return {"args": [sys.executable, "-m", "flujo_client.cli.main", *arguments], "env": environment, "cwd": STEPS}


def told(events):
    text = ""
    for event in events:
        text = "" if event.kind == "withdrawn" else text + event.text
    return text


def read_whole(site, *run, workers):
    """Read the stream of a run to its end; of another one if Redis did not answer for a second, so that a gap replaced some entries."""
    site.standing(workers)
    log = site.folder / "workers.log"
    failures = log.read_text().count(NOT_WRITTEN)
    events = list(enqueue(site, *run).stream())
    is_whole = log.read_text().count(NOT_WRITTEN) == failures
    return events if is_whole else read_whole(site, *run, workers=workers)


def test_a_story_is_read_as_it_is_told(site):
    events = read_whole(site, "story", workers=1)
    assert told(events) == STORY
    assert [events[0].kind, events[-2].kind, events[-1].kind] == ["step_start", "step_end", "end"]
    assert events[-2].data["output"] == events[-1].data["output"] == STORY


def test_a_story_whose_teller_is_killed_is_read_once(site):
    events = read_whole(site, "story", "kill", workers=2)
    kinds = [event.kind for event in events]
    assert (told(events), kinds.count("withdrawn"), kinds.count("gap"), kinds[-1]) == (STORY, 1, 0, "end")
    assert [event.data["output"] for event in events if event.kind in ("step_end", "end")] == [STORY, STORY]


def test_flujo_streams_the_text_and_then_the_result(site):
    async def streamed(pipeline, method="stream_async", **options):
        async with Flujo(pipeline, settings=site.settings) as flujo:
            return [each async for each in getattr(flujo, method)("", **options)]

    site.standing()
    *pieces, result = asyncio.run(streamed(pipelines.silent))
    assert "".join(pieces) == "".join(f"part {number} " for number in range(5))
    assert (result.output, result.success) == ("", True)
    *chunks, outcome, last = asyncio.run(streamed(pipelines.silent, "run_stream"))
    assert "".join(each.data for each in chunks) == "".join(pieces)
    assert {(type(each), each.step_name) for each in chunks} == {(Chunk, "work")}
    assert (type(outcome), last.output) == (Success, "")
    with Flujo(pipelines.silent, settings=site.settings) as flujo:
        flujo.start("", run_id="unstreamed")
    outcome, last = asyncio.run(streamed(pipelines.silent, "run_stream", run_id="unstreamed"))
    assert (type(outcome), last.run_id) == (Success, "unstreamed")
    paused = asyncio.run(streamed("human_pipelines:approval"))[-1]
    assert paused.run_status == "paused"
    site.client.get_run(paused.run_id).cancel()


def test_flujo_streams_the_last_text_of_a_run_that_ends_while_it_reads(site):
    """Its reader takes long over the first piece, and finds the run ended."""
    site.standing()

    async def read_slowly():
        received = []
        async with Flujo(pipelines.parting, settings=site.settings) as flujo:
            async for each in flujo.stream_async("", run_id="parting"):
                received.append(each)
                (site.folder / "go-on-parting").touch()
                wait_until(lambda: site.client.get_run("parting").status() == "succeeded", what=site.log)
        return received

    *pieces, result = asyncio.run(read_slowly())
    assert ("".join(pieces), result.success) == ("I wait no more", True)


def test_the_command_line_prints_what_is_said(site):
    site.standing()
    command = started(site, "run", "stream_pipelines:silent", "--input", "x", "--stream", "--no-steps")
    ran = subprocess.run(**command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (ran.returncode, ran.stdout) == (0, "part 0 part 1 part 2 part 3 part 4 \nx\n"), ran.stderr
    assert "running" not in ran.stderr  # a line about the progress would part the text where both go to one file


def test_a_terminal_shows_a_run_that_is_under_way(site):
    site.standing()
    run = enqueue(site, "lingering")
    screen, side = pty.openpty()
    process = subprocess.Popen(**started(site, "lens", "watch"), stdout=side, stderr=side)
    shown = ""
    while "I wait" not in shown:
        shown += os.read(screen, 4096).decode()
    (site.folder / f"go-on-{run.id}").touch()
    while "lingering  succeeded" not in shown:
        shown += os.read(screen, 4096).decode()
    assert process.wait(PATIENCE_S) == 0
    assert re.search(r"linger\S*  \S*running\S*  [\d.]+ m?s", shown)
    for end in (screen, side):
        os.close(end)
