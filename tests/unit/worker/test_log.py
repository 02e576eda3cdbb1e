"""What a worker logs, and what of it becomes a run's story."""

import io
import json
import logging
import re
import sys
import traceback
import warnings
from pathlib import Path

import pytest
import structlog

from flujo_client.config.models import Log
from flujo_client.pipeline.loop import LoopStep
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.step import Step
from flujo_client.redact import redact_tree
from flujo_worker.observe.log import configure, emit, set_outside_listener, write_line
from flujo_worker.observe.story import MAX_EVENTS

SECRET = "hunter2"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def lines(monkeypatch):
    """Lines on stdout, as a worker of ours writes them."""
    root, out = logging.getLogger(), io.StringIO()
    before = root.handlers[:], root.level
    monkeypatch.setattr(sys, "stdout", out)
    configure(Log())
    yield lambda: [json.loads(line) for line in out.getvalue().splitlines()]
    logging.captureWarnings(capture=False)
    root.handlers[:], root.level = before
    structlog.reset_defaults()


def test_our_own_events_go_through_structlog():
    """What Postgres is written from is a processor of structlog's."""
    files = []
    set_outside_listener(lambda _: files.extend(frame.filename for frame in traceback.extract_stack()))
    try:
        emit("unit.possibly_done")
    finally:
        set_outside_listener(None)
    assert any(Path(structlog.__file__).parent in Path(each).parents for each in files)


def connect(data):
    structlog.get_logger().info(
        f"connecting as app:{data}",
        dsn=f"postgresql://app:{SECRET}@db/app",
        db_password=SECRET,
        deep=[{"token": SECRET}],
    )
    return data


def test_what_an_agent_logs_is_told_without_its_secrets(engine, lines):
    """SYS-21: once as a line and once as an event, both redacted."""
    run = engine.enqueue(Pipeline([Step("connect", connect)]), "me")
    engine.drain()
    (event,) = [event for event in engine.story(run) if event.name == "connecting as app:me"]
    told = {"dsn": "postgresql://app:***@db/app", "db_password": "***", "deep": [{"token": "***"}]}
    assert event.data == told
    (line,) = [line for line in lines() if line["event"] == event.name]
    assert {key: line[key] for key in told} == told


def test_the_fields_of_a_line_are_those_that_the_page_lists(engine, lines):
    """What correlates logs with traces: the run, its place, its tenant and its trace."""
    run = engine.enqueue(Pipeline([Step("connect", connect)]), "me", tenant="acme", trace_parent=PARENT)
    engine.drain()
    [line] = [each for each in lines() if each["event"] == "connecting as app:me"]
    known = {"run": run, "scope": "", "step": "connect", "attempt": 1, "tenant": "acme", "trace_id": PARENT[3:35]}
    assert line.items() >= {**known, "level": "info"}.items()
    page = (Path(__file__).parents[3] / "docs/reference/logs.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| ([^|]+) \|", page, re.MULTILINE))))
    assert line.keys() - {"dsn", "db_password", "deep"} <= listed
    assert listed >= {*known, "event", "level", "timestamp", "worker"}


def test_a_traceback_is_told_without_its_secrets(lines):
    try:
        raise ValueError(f"no connection: password={SECRET}")
    except ValueError:
        logging.getLogger("acme").exception("failed with api_key=%s", SECRET)
    (line,) = lines()
    assert SECRET not in json.dumps(line)
    assert "password=***" in line["exception"]


@pytest.mark.usefixtures("lines")
def test_nothing_but_lines_is_written(monkeypatch):
    """What is printed outside steps, and what Python warns of, are lines too."""
    monkeypatch.setattr(sys, "stdout", out := io.StringIO())
    configure(Log())
    configure(Log())  # as Celery asks for it again
    print("one", end=" ")
    print("line\nand another")
    warnings.warn("mind the gap", stacklevel=1)
    one, another, gap = (json.loads(line)["event"] for line in out.getvalue().splitlines())
    assert (one, another) == ("one line", "and another")
    assert "mind the gap" in gap


@pytest.mark.parametrize("name", ["httpx", "httpx2", "openai", "celery.beat"])
def test_lines_about_each_request_need_the_level_debug(lines, name):
    logging.getLogger(name).info("HTTP Request: POST https://api.openai.com/v1/chat/completions")
    logging.getLogger(name).warning("unusual")
    assert [line["event"] for line in lines()] == ["unusual"]


def test_an_app_of_yours_has_failures_in_its_own_log(caplog):
    """structlog is not configured there, and would print lines that Celery logs as warnings."""
    assert not structlog.is_configured()
    write_line("run failed", "error", run="run_1", api_key=SECRET, exception="Traceback …")
    [record] = caplog.records
    assert record.levelname == "ERROR"
    assert record.getMessage() == "run failed run='run_1' api_key='***'\nTraceback …"


@pytest.mark.parametrize("name", ["tokens", "secretary", "token_count", "keyboard"])
def test_names_that_only_resemble_one_hide_nothing(name):
    assert redact_tree({name: "plain"}) == {name: "plain"}


def test_lines_beyond_the_most_are_counted_in_the_runs_story(engine):
    """SYS-21: no line is lost in silence."""

    def chatter(data):
        for number in range(MAX_EVENTS + 7):
            emit("line", number=number)
        return data

    run = engine.enqueue(Pipeline([Step("talk", chatter)]), "me")
    engine.drain()
    told = [event for event in engine.story(run) if event.name in ("line", "events.dropped")]
    assert [event.name for event in told] == ["line"] * MAX_EVENTS + ["events.dropped"]
    assert (told[-1].data, told[-1].level) == ({"count": 7}, "warning")


def ends(output, context):
    structlog.get_logger().info("looked", at=output)
    return True


@pytest.mark.usefixtures("lines")
def test_what_a_condition_logs_is_in_its_runs_story(engine):
    """M-168: a line is kept with what follows from it."""
    pipeline = Pipeline(
        [LoopStep("more", loop_body_pipeline=Pipeline([Step("x", lambda data: data)]), exit_condition_callable=ends)]
    )
    result = engine.run(pipeline, "hi")
    [line] = [each for each in engine.story(result.run_id) if each.name == "looked"]
    assert line.data == {"at": "hi"}
